// Sandbox: to standby and back.
//
// The shim writes memory and state into standby.new/, the VMM ends, the folder is sealed and
// renamed to standby/. A wake is a boot that restores from there; the folder goes when that has
// come up. Both may fail or be cut off at any point: a folder that is not sealed is nothing, and
// one whose disk has been written to since is not used, so memory and disk never disagree.

#include "sandbox/sandbox_parts.hpp"
#include "sandbox/stamp.hpp"
#include "util/file.hpp"
#include "util/log.hpp"
#include "util/size.hpp"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::sandbox {
namespace {

using namespace std::chrono_literals;

// By itself it is not tried more often in the life of a unit. Each time the shim is given two
// files, and one in the wrong hands could keep them open, removed as they are, until the disk is
// full.
constexpr unsigned kMostFailedParks = 3;

// For a shim that hangs. Many may be written at once, to a slow disk: a MiB a second each.
std::chrono::milliseconds write_deadline(std::uint64_t memory_bytes) {
    return 120s + std::chrono::seconds(memory_bytes / kMiB);
}

image::SnapshotFiles snapshot_files() {
    return {"memory", "state", "../disk.qcow2"};
}

} // namespace

// ---- to standby

void Sandbox::park(Done done) {
    switch (row_.state) {
    case model::State::standby:
        done({});
        return;
    case model::State::parking:
        park_->done.push_back(std::move(done));
        return;
    case model::State::running:
        break;
    default:
        done(fail(ErrorCode::wrong_state,
                  fmt::format("{} is {}; only a running sandbox can go to standby", row_.id,
                              model::to_string(row_.state))));
        return;
    }
    park_ = std::make_unique<Park>();
    park_->asked_us = monotonic_us();
    idle_.reset();
    set_state(model::State::parking);
    save(); // before the shim hears of it: what it does then, a next workdird understands
    if (auto begun = begin_park(); !begun) {
        park_.reset();
        discard_standby();
        set_state(model::State::running);
        save();
        watch_idle();
        done(std::move(begun));
        return;
    }
    park_->done.push_back(std::move(done));
}

Result<void> Sandbox::begin_park() {
    auto space = disk_space(context_.paths.state);
    if (!space) {
        return fail(std::move(space).error());
    }
    // Others that are being parked have not taken all of theirs yet.
    const std::uint64_t need =
        Park::promised_bytes + row_.spec.memory_bytes + context_.config.limits.disk_reserve_bytes;
    park_->promise(row_.spec.memory_bytes);
    if (space->free_bytes < need) {
        return fail(ErrorCode::disk_full,
                    fmt::format("{} is free below {}; the memory of {} may take {}, and {} stay "
                                "free (limits.disk_reserve)",
                                format_size(space->free_bytes), context_.paths.state.string(),
                                row_.id, format_size(row_.spec.memory_bytes),
                                format_size(context_.config.limits.disk_reserve_bytes)));
    }
    discard_standby();
    const auto folder = context_.paths.standby_staging(row_.id);
    if (::mkdir(folder.c_str(), 0700) < 0) {
        return fail_errno(errno, fmt::format("make {}", folder.string()));
    }
    auto memory = open_file(folder / "memory", O_RDWR | O_CREAT | O_EXCL);
    auto state = open_file(folder / "state", O_WRONLY | O_CREAT | O_EXCL);
    if (!memory || !state) {
        return fail(!memory ? std::move(memory).error() : std::move(state).error());
    }
    if (auto done = guard_park(); !done) {
        return done;
    }
    return machine_->snapshot({}, memory->get(), state->get());
}

Result<void> Sandbox::guard_park() {
    auto guard =
        event::Timer::create(context_.loop, write_deadline(row_.spec.memory_bytes), [this] {
            machine_->kill({.reason = model::EndReason::agent_lost,
                            .detail = "its shim did not write it to disk in time"});
        });
    if (!guard) {
        return fail(std::move(guard).error());
    }
    park_->guard = std::move(*guard);
    return {};
}

// The last workdird has asked for it, or was about to: on_hello tells which.
void Sandbox::adopt_park() {
    park_ = std::make_unique<Park>();
    park_->asked_us = monotonic_us();
    if (auto done = guard_park(); !done) {
        log::error(done.error().message, row_.id);
    }
}

void Sandbox::on_hello(const control::Hello& hello) {
    on_activity(hello.sessions);
    if (park_ && row_.state == model::State::parking &&
        hello.state == control::ShimState::running) {
        on_snapshot_failed("workdird was restarted meanwhile");
    }
}

void Sandbox::on_snapshotted(const control::Snapshotted& snapshotted) {
    if (park_) {
        park_->snapshotted = true;
        park_->dirty_bytes = snapshotted.dirty_bytes;
    }
}

void Sandbox::on_snapshot_failed(const std::string& why) {
    if (!park_ || row_.state != model::State::parking) {
        return;
    }
    const auto park = std::exchange(park_, nullptr);
    log::warning(fmt::format("not parked: {}", why), row_.id);
    ++failed_parks_;
    discard_standby();
    set_state(model::State::running);
    save();
    watch_idle();
    for (const Done& done : park->done) {
        done(fail(ErrorCode::wrong_state, fmt::format("{} runs on: {}", row_.id, why)));
    }
    answer_waiting({});
    if (!stopping_.empty() && row_.state == model::State::running) {
        set_state(model::State::stopping);
        save();
        machine_->shutdown(10s);
    }
}

// The VMM has written its last to the disk.
void Sandbox::on_parked_machine_gone() {
    park_->guard.reset();
    context_.worker.run(
        [staging = context_.paths.standby_staging(row_.id),
         folder = context_.paths.standby(row_.id),
         info = image::SnapshotInfo{.stamp = machine_stamp(context_.config, shape()),
                                    .agent_version = row_.agent_version,
                                    .kernel_release = row_.kernel_release}]() -> Result<void> {
            if (auto done = image::seal_snapshot(staging, snapshot_files(), info); !done) {
                return done;
            }
            if (::rename(staging.c_str(), folder.c_str()) < 0) {
                return fail_errno(errno, fmt::format("make {}", folder.string()));
            }
            return sync_path(folder.parent_path());
        },
        [this, alive = std::weak_ptr(alive_)](Result<void> sealed) {
            if (!alive.expired() && park_) {
                end_park(std::move(sealed));
            }
        });
}

void Sandbox::end_park(Result<void> sealed) {
    const auto park = std::exchange(park_, nullptr);
    if (row_.state == model::State::deleting) {
        purge();
        return;
    }
    if (sealed) {
        row_.end = {};
        set_state(model::State::standby);
        log::notice(fmt::format("in standby after {} ms, {} of memory written",
                                (monotonic_us() - park->asked_us) / 1000,
                                format_size(park->dirty_bytes)),
                    row_.id);
    } else {
        discard_standby();
        record_end({.reason = model::EndReason::disk, .detail = sealed.error().message});
        set_state(model::State::failed);
    }
    save();
    for (const Done& done : park->done) {
        done(sealed);
    }
    if (!stopping_.empty()) {
        if (row_.state == model::State::standby) {
            stop(0ms, [](const Result<void>&) {});
        }
        finish_stops({});
        answer_waiting(fail(ErrorCode::wrong_state, fmt::format("{} was stopped", row_.id)));
    } else if (!sealed) {
        answer_waiting(fail(sealed.error()));
    } else if (!waiting_.empty()) {
        observer_.wanted(*this, [this, alive = std::weak_ptr(alive_)](const Result<void>& done) {
            if (!alive.expired()) {
                answer_waiting(done);
            }
        });
    }
}

// Out of sight; the worker frees the space. Also of one that is half made.
void Sandbox::discard_standby() {
    bool found = false;
    for (const auto& folder :
         {context_.paths.standby(row_.id), context_.paths.standby_staging(row_.id)}) {
        auto discarded = discard_folder(context_.paths, folder);
        if (!discarded) {
            log::error(discarded.error().message, row_.id);
        }
        found = found || (discarded && *discarded);
    }
    if (found) {
        context_.worker.run([folder = context_.paths.sandboxes()] { return remove_trash(folder); },
                            [](const Result<void>& removed) {
                                if (!removed) {
                                    log::error(removed.error().message);
                                }
                            });
    }
}

// ---- and back

// Where it is damaged, or made for another host, the sandbox boots with its disk. What merely
// cannot be read now is an error, and it stays in standby.
Result<void> Sandbox::choose_wake() {
    auto info = image::open_snapshot(context_.paths.standby(row_.id), snapshot_files(),
                                     machine_stamp(context_.config, shape()));
    if (info) {
        boot_->standby = std::move(*info);
        return {};
    }
    const ErrorCode code = info.error().code;
    if (code != ErrorCode::unsupported && code != ErrorCode::invalid_argument &&
        code != ErrorCode::not_found) {
        return fail(std::move(info).error());
    }
    boot_->waking = false;
    log::warning(
        fmt::format("cannot wake, so it boots anew with its disk: {}", info.error().message),
        row_.id);
    discard_standby();
    return {};
}

bool Sandbox::has_standby() const {
    return ::access(context_.paths.standby(row_.id).c_str(), F_OK) == 0;
}

bool Sandbox::is_parking_or_waking() const {
    return row_.state == model::State::parking ||
           (row_.state == model::State::starting && boot_ && boot_->waking);
}

void Sandbox::when_running(Done done) {
    if (row_.state == model::State::running && machine_) {
        done({});
    } else if (row_.state == model::State::standby) {
        waiting_.push_back(std::move(done));
        observer_.wanted(*this, [this, alive = std::weak_ptr(alive_)](const Result<void>& woken) {
            if (!alive.expired()) {
                answer_waiting(woken);
            }
        });
    } else if (is_parking_or_waking()) {
        waiting_.push_back(std::move(done));
    } else {
        const bool ended =
            row_.state == model::State::stopped || row_.state == model::State::failed;
        done(fail(ErrorCode::wrong_state,
                  fmt::format("{} is {}{}", row_.id, model::to_string(row_.state),
                              ended ? "; start it with wd start" : "")));
    }
}

void Sandbox::answer_waiting(const Result<void>& result) {
    for (const Done& done : std::exchange(waiting_, {})) {
        done(result);
    }
}

void Sandbox::exec(const wire::ExecRequest& request, std::function<void(Result<Fd>)> done) {
    when_running([this, request, done = std::move(done)](const Result<void>& running) {
        done(running ? open_session(request) : fail(running.error()));
    });
}

Result<Fd> Sandbox::open_session(const wire::ExecRequest& request) {
    if (row_.state != model::State::running || !machine_) {
        return fail(ErrorCode::wrong_state,
                    fmt::format("{} is {}", row_.id, model::to_string(row_.state)));
    }
    auto pair = socket_pair(SOCK_STREAM);
    if (!pair) {
        return fail(std::move(pair).error());
    }
    if (auto done = machine_->open_session(std::move(pair->second), wire::encode(request)); !done) {
        return fail(std::move(done).error());
    }
    watch_idle(); // the shim tells when it has the session, and when the last has gone
    return std::move(pair->first);
}

// ---- left alone

void Sandbox::on_activity(std::uint32_t sessions) {
    sessions_ = sessions;
    watch_idle();
}

void Sandbox::watch_idle() {
    idle_.reset();
    if (row_.state != model::State::running || sessions_ > 0 || failed_parks_ >= kMostFailedParks ||
        row_.spec.idle_timeout.count() == 0) {
        return;
    }
    auto timer = event::Timer::create(context_.loop, row_.spec.idle_timeout, [this] {
        park([id = row_.id](const Result<void>& parked) {
            if (!parked) {
                log::notice(fmt::format("idle, but not parked: {}", parked.error().message), id);
            }
        });
    });
    if (timer) {
        idle_ = std::move(*timer);
    } else {
        log::error(timer.error().message, row_.id);
    }
}

} // namespace wd::sandbox
