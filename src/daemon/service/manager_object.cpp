#include "daemon/service/manager_object.hpp"

#include "daemon/doctor.hpp"
#include "daemon/service/service.hpp"
#include "util/log.hpp"
#include "util/text.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace wd::daemon {

ManagerObject::ManagerObject(Service& service)
    : AdaptorInterfaces(service.bus().get(), bus::make_path(kRootPath)), service_(service) {
    registerAdaptor();
    watch_callers();
}

ManagerObject::~ManagerObject() {
    unregisterAdaptor();
}

// A create whose caller leaves the bus is undone. The bus tells of everyone's departures, through
// one match for all (a connection may have 512), and in order with their calls: who is noted in the
// handler of the call is not missed.
struct ManagerObject::Caller {
    std::string name;
    bool left = false;
    std::string id; // of its sandbox, once there is one
};

void ManagerObject::watch_callers() {
    departures_ =
        bus::add_match(service_.bus().get(),
                       "type='signal',sender='org.freedesktop.DBus',path='/org/freedesktop/DBus',"
                       "interface='org.freedesktop.DBus',member='NameOwnerChanged',arg2=''",
                       [this](sdbus::Message& message) {
                           bus::guarded([&] {
                               std::string name;
                               message >> name;
                               on_departure(name);
                           });
                       });
}

void ManagerObject::on_departure(const std::string& name) {
    std::vector<std::string> abandoned;
    std::erase_if(callers_, [&](const std::weak_ptr<Caller>& weak) {
        const auto caller = weak.lock();
        if (caller && caller->name == name) {
            caller->left = true;
            abandoned.push_back(caller->id);
        }
        return !caller;
    });
    for (const std::string& id : abandoned) {
        abandon(id);
    }
}

void ManagerObject::abandon(const std::string& id) {
    sandbox::Sandbox* const left = service_.manager().find_id(id);
    if (left != nullptr && left->state() == model::State::creating) {
        log::info("its creator has gone", id);
        left->remove([](const Result<void>&) {});
    }
}

void ManagerObject::Create(sdbus::Result<sdbus::ObjectPath, bus::Dict>&& result,
                           bus::Dict options) {
    const CreateReply reply(std::move(result));
    auto read = read_create_options(options, service_.context().config.defaults);
    if (!read) {
        reply.fail(read.error());
        return;
    }
    const auto caller = std::make_shared<Caller>();
    caller->name = bus::current_sender_name(getObject());
    std::erase_if(callers_, [](const std::weak_ptr<Caller>& done) { return done.expired(); });
    callers_.push_back(caller);
    service_.admit(getObject(), INTERFACE_NAME, "Create", reply,
                   [this, reply, read = std::move(*read), caller](const bus::Sender& sender) {
                       if (caller->left) {
                           reply.fail(Error{ErrorCode::cancelled, 0, "the caller has gone"});
                       } else {
                           create(sender, read, caller, reply);
                       }
                   });
}

void ManagerObject::create(const bus::Sender& sender, CreateOptions options,
                           const std::shared_ptr<Caller>& caller, const CreateReply& reply) {
    const auto on_phase = [this, destination = sender.name,
                           token = options.token](const std::string& id, model::Phase phase) {
        if (!token.empty()) {
            (void)bus::attempt([&] {
                bus::emit_to(getObject(), destination, INTERFACE_NAME, "CreateProgress", token, id,
                             std::string(model::to_string(phase)));
            });
        }
    };
    const auto id = service_.manager().create(
        std::move(options.spec), sender.uid, on_phase,
        [reply, caller](Result<sandbox::Sandbox*> created) { // keeps the caller noted
            if (!created) {
                reply.fail(created.error());
                return;
            }
            reply(bus::make_path(sandbox_path((*created)->id())), report_of(**created));
        });
    if (id) {
        caller->id = *id;
    } else {
        reply.fail(id.error());
    }
}

void ManagerObject::Get(sdbus::Result<sdbus::ObjectPath, std::string>&& result,
                        std::string id_or_name) {
    const Reply<sdbus::ObjectPath, std::string> reply(std::move(result));
    service_.admit_to(getObject(), INTERFACE_NAME, "Get", id_or_name, reply,
                      [reply](const bus::Sender&, sandbox::Sandbox& sandbox) {
                          reply(bus::make_path(sandbox_path(sandbox.id())), sandbox.id());
                      });
}

void ManagerObject::List(sdbus::Result<std::vector<bus::Dict>>&& result, bus::Dict options) {
    const Reply<std::vector<bus::Dict>> reply(std::move(result));
    const auto read = read_list_options(options);
    if (!read) {
        reply.fail(read.error());
        return;
    }
    service_.admit(
        getObject(), INTERFACE_NAME, "List", reply,
        [this, reply, read = *read](const bus::Sender& sender) {
            if (!read.all) {
                reply(list(read, sender.uid));
                return;
            }
            service_.require_all(sender, [this, reply, read, sender](const Result<void>& allowed) {
                allowed ? reply(list(read, sender.uid)) : reply.fail(allowed.error());
            });
        });
}

std::vector<bus::Dict> ManagerObject::list(const ListOptions& options, std::uint32_t uid) {
    std::vector<bus::Dict> entries;
    for (const sandbox::Sandbox* sandbox : service_.manager().list()) {
        const store::SandboxRow& row = sandbox->row();
        const bool labels_match =
            std::all_of(options.labels.begin(), options.labels.end(), [&](const auto& wanted) {
                const auto at = row.spec.labels.find(wanted.first);
                return at != row.spec.labels.end() && at->second == wanted.second;
            });
        if (labels_match && (options.all || row.owner_uid == uid)) {
            entries.push_back(view_of_sandbox(*sandbox, service_.context().paths));
        }
    }
    return entries;
}

void ManagerObject::ListImages(sdbus::Result<std::vector<bus::Dict>>&& result) {
    const Reply<std::vector<bus::Dict>> reply(std::move(result));
    service_.admit(getObject(), INTERFACE_NAME, "ListImages", reply,
                   [this, reply](const bus::Sender&) { reply(list_images()); });
}

std::vector<bus::Dict> ManagerObject::list_images() {
    const auto images = service_.context().images.list();
    std::vector<bus::Dict> entries;
    for (std::size_t i = 0; i < images.size(); ++i) {
        const auto& manifest = images[i].manifest;
        const bool latest = i + 1 == images.size() || images[i + 1].manifest.name != manifest.name;
        const auto users = service_.manager().users_of_image(manifest.name, manifest.version);
        entries.push_back(view_of_image(images[i], users.size(), latest));
    }
    return entries;
}

void ManagerObject::InspectImage(sdbus::Result<bus::Dict>&& result, std::string name) {
    const Reply<bus::Dict> reply(std::move(result));
    service_.admit(getObject(), INTERFACE_NAME, "InspectImage", reply,
                   [this, reply, name](const bus::Sender&) {
                       const auto image = service_.context().images.find(name);
                       if (!image) {
                           reply.fail(image.error());
                           return;
                       }
                       const auto& manifest = image->manifest;
                       const auto users =
                           service_.manager().users_of_image(manifest.name, manifest.version);
                       bus::Dict view = view_of_image(*image, users.size(), true);
                       view["recipe"] = sdbus::Variant(manifest.recipe_hash);
                       view["suite"] = sdbus::Variant(manifest.suite);
                       view["packages"] = sdbus::Variant(manifest.packages);
                       view["path"] = sdbus::Variant(image->folder.string());
                       reply(view);
                   });
}

void ManagerObject::BuildImage(sdbus::Result<sdbus::ObjectPath, std::string>&& result,
                               std::string name, bus::Dict options) {
    const Reply<sdbus::ObjectPath, std::string> reply(std::move(result));
    if (auto good = read_no_options(options); !good) {
        reply.fail(good.error());
        return;
    }
    service_.admit(getObject(), INTERFACE_NAME, "BuildImage", reply,
                   [this, reply, name](const bus::Sender&) {
                       const auto job = service_.image_jobs().build(
                           name, service_.context().config.limits.disk_reserve_bytes);
                       if (job) {
                           reply(bus::make_path(job_path((*job)->number)), (*job)->unit);
                       } else {
                           reply.fail(job.error());
                       }
                   });
}

void ManagerObject::RemoveImage(sdbus::Result<std::vector<std::string>>&& result, std::string name,
                                bus::Dict options) {
    const Reply<std::vector<std::string>> reply(std::move(result));
    const auto version = read_version_option(options);
    if (!version) {
        reply.fail(version.error());
        return;
    }
    service_.admit(getObject(), INTERFACE_NAME, "RemoveImage", reply,
                   [this, reply, name, version = *version](const bus::Sender&) {
                       const auto removed = remove_image(name, version);
                       if (removed) {
                           reply(*removed);
                       } else {
                           reply.fail(removed.error());
                       }
                   });
}

// All or nothing: a version that something rests on keeps the others too.
Result<std::vector<std::string>> ManagerObject::remove_image(const std::string& name,
                                                             const std::string& version) {
    sandbox::Context& context = service_.context();
    if (auto found = context.images.find(name, version); !found) {
        return fail(std::move(found).error());
    }
    std::vector<image::Image> doomed;
    std::vector<std::string> users;
    for (image::Image& image : context.images.list()) {
        const auto& manifest = image.manifest;
        if (manifest.name != name || (!version.empty() && manifest.version != version)) {
            continue;
        }
        const auto more = service_.manager().users_of_image(manifest.name, manifest.version);
        users.insert(users.end(), more.begin(), more.end());
        doomed.push_back(std::move(image));
    }
    if (!users.empty()) {
        return fail(ErrorCode::wrong_state,
                    fmt::format("image {} is in use by {}; remove them first", quote(name),
                                fmt::join(users, ", ")));
    }
    std::vector<std::string> removed;
    for (const image::Image& image : doomed) {
        if (auto done = context.images.discard(image); !done) {
            return fail(std::move(done).error());
        }
        removed.push_back(fmt::format("{}:{}", image.manifest.name, image.manifest.version));
    }
    service_.image_jobs().sweep();
    return removed;
}

void ManagerObject::Doctor(sdbus::Result<std::vector<bus::Dict>>&& result) {
    const Reply<std::vector<bus::Dict>> reply(std::move(result));
    service_.admit(getObject(), INTERFACE_NAME, "Doctor", reply, [this, reply](const bus::Sender&) {
        examine(service_.context(), service_.bus(), [reply](const std::vector<Finding>& findings) {
            std::vector<bus::Dict> entries;
            for (const Finding& finding : findings) {
                entries.push_back(view_of_finding(finding));
            }
            reply(entries);
        });
    });
}

std::string ManagerObject::Version() {
    return WORKDIR_VERSION;
}

} // namespace wd::daemon
