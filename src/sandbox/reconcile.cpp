// Manager::reconcile: the order after a start of workdird. The truth about what runs is PID 1's,
// the truth about what should be there is the store's; the unit's name and its InvocationID join
// them.

#include "sandbox/manager.hpp"

#include "util/ids.hpp"
#include "util/log.hpp"

#include <optional>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

namespace wd::sandbox {

namespace {
// Questions to PID 1 under way at once. The bus drops calls of a connection that waits for more
// than 128 replies (max_replies_per_connection of dbus-daemon).
constexpr std::size_t kMostQueries = 32;
} // namespace

struct Manager::Reconcile {
    std::function<void(Result<void>)> done;
    std::vector<std::string> units;
    std::size_t next = 0;       // of them, to ask for
    std::size_t open = 0;       // questions without an answer yet
    std::optional<Error> error; // of the first question that failed
    std::set<std::string> seen; // ids with a loaded unit
    std::size_t adopted = 0;
    std::size_t removed = 0;
};

void Manager::reconcile(std::function<void(Result<void>)> done) {
    auto rows = context_.store.load_all();
    if (!rows) {
        done(fail(std::move(rows).error()));
        return;
    }
    for (store::SandboxRow& row : *rows) {
        add(std::move(row));
    }
    auto work = std::make_shared<Reconcile>();
    work->done = std::move(done);
    // "workdir-sb-*" is every sandbox's unit; the probe's and that of a golden snapshot in the
    // making are removed in any case: both begin anew.
    context_.units.list("workdir-sb-*.service", [this, work](auto names) {
        if (!names) {
            work->done(fail(std::move(names).error()));
            return;
        }
        work->units = std::move(*names);
        work->units.emplace_back(AccelProbe::kUnit);
        work->units.emplace_back(Goldens::kUnit);
        ask(work);
    });
}

void Manager::ask(const std::shared_ptr<Reconcile>& work) {
    while (work->open < kMostQueries && work->next < work->units.size()) {
        const std::string name = work->units[work->next++];
        ++work->open;
        context_.units.query(name, [this, work, name](Result<pid1::UnitState> state) {
            --work->open;
            settle(work, name, state);
            if (work->next < work->units.size()) {
                ask(work);
            } else if (work->open == 0) {
                finish_reconcile(work);
            }
        });
    }
}

void Manager::settle(const std::shared_ptr<Reconcile>& work, const std::string& unit,
                     const Result<pid1::UnitState>& state) {
    if (!state) {
        log::error(fmt::format("{}: {}", unit, state.error().message));
        work->error = work->error.value_or(state.error());
        return;
    }
    const std::string id = sandbox_id_of_unit(unit);
    Sandbox* const sandbox = id.empty() ? nullptr : find_id(id);
    if (sandbox == nullptr) {
        work->removed += state->is_gone() ? 0 : 1;
        remove_unit(*state);
        return;
    }
    work->seen.insert(id);
    const std::string& expected = sandbox->row().invocation_id;
    const bool ours = expected.empty() || expected == state->invocation_id;
    if (state->is_gone() || !ours || !model::is_live(sandbox->state())) {
        if (!state->is_gone() && sandbox->state() != model::State::deleting) {
            log::warning(fmt::format("{} is not the unit that workdird started", unit), id);
        }
        remove_unit(*state);
        sandbox->ended_while_away(*state);
        return;
    }
    // Who waited for a create is gone with the workdird that served it.
    if (sandbox->state() == model::State::creating) {
        remove_unit(*state);
        sandbox->remove([](const Result<void>&) {});
        return;
    }
    if (sandbox->adopt(*state)) {
        work->adopted += 1;
    }
}

namespace {
// workdir-NAME.service -> NAME
std::string socket_name_of_unit(std::string_view unit) {
    constexpr std::string_view kBefore = "workdir-";
    const auto end = unit.rfind('.');
    return std::string(unit.substr(kBefore.size(), end - kBefore.size()));
}
} // namespace

// Ends a unit that nobody wants, and frees its name.
void Manager::remove_unit(const pid1::UnitState& state) {
    if (state.is_gone()) {
        context_.units.reset_failed(state.name, [](const Result<void>&) {});
        return;
    }
    const std::string id = socket_name_of_unit(state.name);
    auto& stray = strays_[state.name] = std::make_unique<Machine>(
        context_.loop, context_.units, state.name, context_.paths.control_socket(id),
        Machine::Listener{
            .on_phase = [](model::Phase) {},
            .on_ready = [](const control::Ready&) {},
            .on_gone = [this, unit = state.name](const control::Ended&) { strays_.erase(unit); }});
    (void)stray->adopt(); // that its shim does not answer is no matter
    stray->kill({.reason = model::EndReason::deleted});
}

void Manager::finish_reconcile(const std::shared_ptr<Reconcile>& work) {
    if (work->error) { // not knowing is not "ended": workdird ends, and is started again
        work->done(fail(std::move(*work->error)));
        return;
    }
    for (Sandbox* sandbox : list()) {
        if (!work->seen.contains(sandbox->id())) {
            sandbox->ended_while_away({.name = sandbox->unit(), .active_state = "inactive"});
        }
    }
    sweep();
    context_.goldens.sweep();
    log::notice(fmt::format("{} sandboxes: {} adopted, {} units that belonged to nobody removed",
                            sandboxes_.size(), work->adopted, work->removed));
    work->done({});
}

// What lies on the disk and belongs to no sandbox. The slow part runs in the worker.
void Manager::sweep() {
    const std::size_t folders =
        sweep_sandbox_folders(context_.paths, [this](std::string_view name) {
            return sandboxes_.contains(std::string(name));
        });
    if (folders > 0) {
        log::notice(
            fmt::format("{} folders of sandboxes that belonged to nobody are removed", folders));
    }
    std::error_code ec;
    std::vector<std::filesystem::path> sockets;
    for (std::filesystem::directory_iterator at(context_.paths.control(), ec), end;
         !ec && at != end; at.increment(ec)) {
        Sandbox* const sandbox = find_id(at->path().stem().string());
        if (sandbox == nullptr || !model::is_live(sandbox->state())) {
            sockets.push_back(at->path());
        }
    }
    for (const auto& path : sockets) {
        (void)::unlink(path.c_str());
    }
    context_.worker.run([folder = context_.paths.sandboxes()] { return remove_trash(folder); },
                        [](const Result<void>& removed) {
                            if (!removed) {
                                log::error(removed.error().message);
                            }
                        });
}

} // namespace wd::sandbox
