#include "daemon/service/sandbox_object.hpp"

#include "daemon/service/service.hpp"
#include "daemon/service/views.hpp"
#include "util/ids.hpp"

namespace wd::daemon {

SandboxObject::SandboxObject(Service& service, std::string id)
    : AdaptorInterfaces(service.bus().get(), bus::make_path(sandbox_path(id))),
      service_(service),
      id_(std::move(id)) {
    registerAdaptor();
}

SandboxObject::~SandboxObject() {
    unregisterAdaptor();
}

void SandboxObject::state_changed() {
    (void)bus::attempt([&] { bus::emit_changed(getObject(), INTERFACE_NAME, {"State"}); });
}

void SandboxObject::Exec(sdbus::Result<sdbus::UnixFd>&& result, std::vector<std::string> argv,
                         bus::Dict options) {
    const Reply<sdbus::UnixFd> reply(std::move(result));
    auto request = read_exec_request(std::move(argv), options);
    if (!request) {
        reply.fail(request.error());
        return;
    }
    service_.admit_to(
        getObject(), INTERFACE_NAME, "Exec", id_, reply,
        [reply, request = std::move(*request)](const bus::Sender&, sandbox::Sandbox& sandbox) {
            sandbox.exec(request, [reply](Result<Fd> session) {
                if (session) {
                    reply(bus::give_fd(std::move(*session)));
                } else {
                    reply.fail(session.error());
                }
            });
        });
}

void SandboxObject::Stop(sdbus::Result<>&& result, bus::Dict options) {
    const Reply<> reply(std::move(result));
    const auto deadline = read_stop_options(options);
    if (!deadline) {
        reply.fail(deadline.error());
        return;
    }
    service_.admit_to(getObject(), INTERFACE_NAME, "Stop", id_, reply,
                      [reply, deadline = *deadline](const bus::Sender&, sandbox::Sandbox& sandbox) {
                          sandbox.stop(deadline, [reply](const Result<void>& done) {
                              done ? reply() : reply.fail(done.error());
                          });
                      });
}

void SandboxObject::Standby(sdbus::Result<>&& result, bus::Dict options) {
    const Reply<> reply(std::move(result));
    if (auto good = read_no_options(options); !good) {
        reply.fail(good.error());
        return;
    }
    service_.admit_to(getObject(), INTERFACE_NAME, "Standby", id_, reply,
                      [reply](const bus::Sender&, sandbox::Sandbox& sandbox) {
                          sandbox.park([reply](const Result<void>& done) {
                              done ? reply() : reply.fail(done.error());
                          });
                      });
}

void SandboxObject::Start(sdbus::Result<bus::Dict>&& result, bus::Dict options) {
    const Reply<bus::Dict> reply(std::move(result));
    if (auto good = read_no_options(options); !good) {
        reply.fail(good.error());
        return;
    }
    service_.admit_to(getObject(), INTERFACE_NAME, "Start", id_, reply,
                      [this, reply](const bus::Sender&, sandbox::Sandbox& sandbox) {
                          service_.manager().start(sandbox, [service = &service_, id = sandbox.id(),
                                                             reply](const Result<void>& done) {
                              sandbox::Sandbox* const started = service->manager().find_id(id);
                              if (!done) {
                                  reply.fail(done.error());
                              } else if (started != nullptr) {
                                  reply(report_of(*started));
                              }
                          });
                      });
}

void SandboxObject::Remove(sdbus::Result<>&& result, bus::Dict options) {
    const Reply<> reply(std::move(result));
    if (auto good = read_no_options(options); !good) {
        reply.fail(good.error());
        return;
    }
    service_.admit_to(getObject(), INTERFACE_NAME, "Remove", id_, reply,
                      [reply](const bus::Sender&, sandbox::Sandbox& sandbox) {
                          sandbox.remove([reply](const Result<void>& done) {
                              done ? reply() : reply.fail(done.error());
                          });
                      });
}

void SandboxObject::Inspect(sdbus::Result<bus::Dict>&& result) {
    const Reply<bus::Dict> reply(std::move(result));
    service_.admit_to(getObject(), INTERFACE_NAME, "Inspect", id_, reply,
                      [this, reply](const bus::Sender&, sandbox::Sandbox& sandbox) {
                          reply(view_of_sandbox(sandbox, service_.context().paths));
                      });
}

void SandboxObject::OpenConsole(sdbus::Result<sdbus::UnixFd>&& result) {
    const Reply<sdbus::UnixFd> reply(std::move(result));
    service_.admit_to(getObject(), INTERFACE_NAME, "OpenConsole", id_, reply,
                      [reply](const bus::Sender&, sandbox::Sandbox& sandbox) {
                          auto log = sandbox.open_console();
                          if (log) {
                              reply(bus::give_fd(std::move(*log)));
                          } else {
                              reply.fail(log.error());
                          }
                      });
}

std::string SandboxObject::Id() {
    return id_;
}

std::string SandboxObject::Unit() {
    return unit_name(id_);
}

std::string SandboxObject::State() {
    const sandbox::Sandbox* const sandbox = service_.manager().find_id(id_);
    return std::string(
        model::to_string(sandbox != nullptr ? sandbox->state() : model::State::deleting));
}

} // namespace wd::daemon
