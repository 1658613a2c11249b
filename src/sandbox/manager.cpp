#include "sandbox/manager.hpp"

#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/log.hpp"
#include "util/size.hpp"
#include "util/text.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace wd::sandbox {

Manager::Manager(Context context, Observer observer)
    : context_(context), observer_(std::move(observer)) {}

Sandbox& Manager::add(store::SandboxRow row) {
    const std::string id = row.id;
    auto sandbox = std::make_unique<Sandbox>(
        context_, std::move(row),
        Sandbox::Observer{.changed = [this](Sandbox& changed) { observer_.changed(changed); },
                          .wanted = [this](Sandbox& wanted,
                                           Sandbox::Done done) { start(wanted, std::move(done)); },
                          .removed =
                              [this](Sandbox& removed) {
                                  observer_.removed(removed.id());
                                  auto node = sandboxes_.extract(removed.id());
                                  buried_.push_back(std::move(node.mapped()));
                                  auto defer = event::Defer::create(context_.loop,
                                                                    [this] { buried_.clear(); });
                                  if (defer) {
                                      burial_ = std::move(*defer);
                                  }
                              }});
    Sandbox& added = *sandbox;
    sandboxes_.emplace(id, std::move(sandbox));
    observer_.added(added);
    return added;
}

Result<void> Manager::admit(const model::SandboxSpec& spec, std::uint32_t owner_uid, bool new_one) {
    model::Usage usage;
    for (const auto& [id, sandbox] : sandboxes_) {
        const store::SandboxRow& row = sandbox->row();
        ++usage.sandboxes;
        usage.sandboxes_of_user += row.owner_uid == owner_uid ? 1 : 0;
        if (model::is_live(row.state)) {
            usage.live_memory_bytes += row.spec.memory_bytes + model::kMemoryOverheadBytes;
        }
    }
    auto space = disk_space(context_.paths.state);
    if (!space) {
        return fail(std::move(space).error());
    }
    usage.disk_free_bytes = space->free_bytes;
    return model::admit(spec, context_.config.limits, usage, new_one);
}

namespace {

std::string name_taken(const Sandbox& sandbox, std::uint32_t asking_uid) {
    const store::SandboxRow& row = sandbox.row();
    return row.owner_uid == asking_uid
               ? fmt::format("there is a sandbox of the name {} already ({}); choose another name, "
                             "or remove it with wd rm",
                             quote(row.spec.name), row.id)
               : fmt::format("another user has a sandbox of the name {}; choose another name",
                             quote(row.spec.name));
}

} // namespace

Result<std::string> Manager::create(model::SandboxSpec spec, std::uint32_t owner_uid,
                                    std::function<void(const std::string&, model::Phase)> on_phase,
                                    Created done) {
    if (auto good = model::check_spec(spec, context_.config.limits); !good) {
        return fail(std::move(good).error());
    }
    if (!spec.name.empty()) {
        for (const auto& [id, sandbox] : sandboxes_) {
            if (sandbox->row().spec.name == spec.name) {
                return fail(ErrorCode::exists, name_taken(*sandbox, owner_uid));
            }
        }
    }
    auto image = context_.images.find(spec.image);
    if (!image) {
        return fail(std::move(image).error());
    }
    spec.image_version = image->manifest.version;
    if (spec.disk_bytes < image->manifest.size_bytes) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{} of disk asked; image {} needs at least {}",
                                format_size(spec.disk_bytes), quote(spec.image),
                                format_size(image->manifest.size_bytes)));
    }
    if (auto room = admit(spec, owner_uid, true); !room) {
        return fail(std::move(room).error());
    }
    store::SandboxRow row;
    do {
        row.id = new_sandbox_id();
    } while (sandboxes_.contains(row.id));
    row.spec = std::move(spec);
    row.owner_uid = owner_uid;
    row.machine_id = new_machine_id();
    row.created_us = realtime_us();
    Sandbox& sandbox = add(std::move(row));
    const std::string id = sandbox.id();
    sandbox.boot([id, on_phase = std::move(on_phase)](model::Phase phase) { on_phase(id, phase); },
                 [this, id, done = std::move(done)](Result<void> result) {
                     Sandbox* const ready = find_id(id);
                     if (!result) {
                         done(fail(std::move(result).error()));
                     } else if (ready == nullptr) {
                         done(fail(ErrorCode::cancelled, fmt::format("{} was removed", id)));
                     } else {
                         done(ready);
                     }
                 });
    return id;
}

void Manager::start(Sandbox& sandbox, Sandbox::Done done) {
    if (sandbox.is_parking_or_waking()) {
        sandbox.when_running(std::move(done));
        return;
    }
    if (sandbox.state() != model::State::stopped && sandbox.state() != model::State::failed &&
        sandbox.state() != model::State::standby) {
        done(fail(
            ErrorCode::wrong_state,
            fmt::format("{} is {}; only one that is stopped, failed or in standby can be started",
                        sandbox.id(), model::to_string(sandbox.state()))));
        return;
    }
    if (auto room = admit(sandbox.row().spec, sandbox.row().owner_uid, false); !room) {
        done(fail(std::move(room).error()));
        return;
    }
    sandbox.boot(nullptr, std::move(done));
}

Sandbox* Manager::find_id(const std::string& id) {
    const auto at = sandboxes_.find(id);
    return at == sandboxes_.end() ? nullptr : at->second.get();
}

Result<Sandbox*> Manager::find(std::string_view id_or_name) {
    if (is_sandbox_id(id_or_name)) { // a name never has that form
        if (Sandbox* sandbox = find_id(std::string(id_or_name))) {
            return sandbox;
        }
    } else if (!id_or_name.empty()) {
        for (const auto& [id, sandbox] : sandboxes_) {
            if (sandbox->row().spec.name == id_or_name) {
                return sandbox.get();
            }
        }
    }
    return fail(ErrorCode::not_found,
                fmt::format("no sandbox {}; wd ls shows those there are", quote(id_or_name)));
}

std::vector<Sandbox*> Manager::list() {
    std::vector<Sandbox*> all;
    for (const auto& [id, sandbox] : sandboxes_) {
        all.push_back(sandbox.get());
    }
    std::sort(all.begin(), all.end(), [](const Sandbox* a, const Sandbox* b) {
        return std::pair(a->row().created_us, a->id()) < std::pair(b->row().created_us, b->id());
    });
    return all;
}

std::vector<std::string> Manager::users_of_image(const std::string& name,
                                                 const std::string& version) const {
    std::vector<std::string> users;
    for (const auto& [id, sandbox] : sandboxes_) {
        const model::SandboxSpec& spec = sandbox->row().spec;
        if (spec.image == name && spec.image_version == version) {
            users.push_back(id);
        }
    }
    return users;
}

} // namespace wd::sandbox
