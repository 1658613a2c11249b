#include "daemon/service/service.hpp"

#include "daemon/service/job_object.hpp"
#include "daemon/service/manager_object.hpp"
#include "daemon/service/sandbox_object.hpp"
#include "util/log.hpp"

#include <cstdlib>

#include <fmt/format.h>
#include <systemd/sd-bus.h>

namespace wd::daemon {

std::string sandbox_path(const std::string& id) {
    char* path = nullptr;
    if (sd_bus_path_encode("/dev/workdir1/sandbox", id.c_str(), &path) < 0) {
        return {};
    }
    std::string out(path);
    std::free(path);
    return out;
}

std::string job_path(std::uint32_t number) {
    return fmt::format("/dev/workdir1/job/{}", number);
}

Service::Service(bus::Connection& bus, sandbox::Context context) : bus_(bus), context_(context) {}

Service::~Service() = default;

Result<std::unique_ptr<Service>> Service::create(bus::Connection& bus, sandbox::Context context) {
    std::unique_ptr<Service> service(new Service(bus, context));
    Service* const self = service.get();
    auto authorizer = Authorizer::create(bus);
    if (!authorizer) {
        return fail(std::move(authorizer).error());
    }
    service->authorizer_ = std::move(*authorizer);
    service->manager_ = std::make_unique<sandbox::Manager>(
        context,
        sandbox::Manager::Observer{
            .added =
                [self](sandbox::Sandbox& sandbox) {
                    self->sandbox_objects_[sandbox.id()] =
                        std::make_unique<SandboxObject>(*self, sandbox.id());
                },
            .changed =
                [self](sandbox::Sandbox& sandbox) {
                    self->sandbox_objects_.at(sandbox.id())->state_changed();
                },
            .removed = [self](const std::string& id) { self->sandbox_objects_.erase(id); }});
    service->image_jobs_ = std::make_unique<sandbox::ImageJobs>(
        context.loop, context.worker, context.units, context.images,
        sandbox::ImageJobs::Observer{
            .added =
                [self](const sandbox::ImageJob& job) {
                    self->job_objects_[job.number] = std::make_unique<JobObject>(*self, job.number);
                },
            .changed =
                [self](const sandbox::ImageJob& job) {
                    self->job_objects_.at(job.number)->changed();
                },
            .removed = [self](std::uint32_t number) { self->job_objects_.erase(number); }});
    auto exported =
        bus::attempt([&] { service->manager_object_ = std::make_unique<ManagerObject>(*self); });
    if (!exported) {
        return fail(std::move(exported).error());
    }
    return service;
}

void Service::start(std::function<void(Result<void>)> done) {
    manager_->reconcile([this, done = std::move(done)](Result<void> result) {
        if (!result) {
            done(std::move(result));
            return;
        }
        image_jobs_->reconcile([this, done] { done(bus_.request_name(kBusName)); });
    });
}

void Service::ask(sdbus::IObject& object, const char* interface, const char* method, Refuse refuse,
                  Admitted admitted) {
    const auto action = action_of(interface, method);
    if (!action) {
        refuse(Error{ErrorCode::not_authorised, 0,
                     fmt::format("{}.{} is not open to anyone", interface, method)});
        return;
    }
    auto sender = bus::attempt([&] { return bus::current_sender(object); });
    if (!sender) {
        refuse(sender.error());
        return;
    }
    authorizer_->check(*sender, *action,
                       [sender = *sender, refuse = std::move(refuse),
                        admitted = std::move(admitted)](const Result<void>& allowed) {
                           if (allowed) {
                               admitted(sender);
                           } else {
                               refuse(allowed.error());
                           }
                       });
}

void Service::ask_owner(const bus::Sender& sender, const std::string& id_or_name,
                        const Refuse& refuse, const AdmittedTo& admitted) {
    auto found = manager_->find(id_or_name);
    if (!found) {
        refuse(found.error());
        return;
    }
    if ((*found)->row().owner_uid == sender.uid) {
        admitted(sender, **found);
        return;
    }
    require_all(sender, [this, sender, id = (*found)->id(), refuse,
                         admitted](const Result<void>& allowed) {
        if (!allowed) {
            refuse(
                Error{ErrorCode::not_authorised, 0,
                      fmt::format("{} belongs to another user; {}", id, allowed.error().message)});
            return;
        }
        if (sandbox::Sandbox* sandbox = manager_->find_id(id)) { // polkit took its time
            admitted(sender, *sandbox);
        } else {
            refuse(Error{ErrorCode::not_found, 0, fmt::format("{} was removed", id)});
        }
    });
}

void Service::require_all(const bus::Sender& sender, Authorizer::Callback callback) {
    authorizer_->check(sender, Action::manage_all, std::move(callback));
}

} // namespace wd::daemon
