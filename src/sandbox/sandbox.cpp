#include "sandbox/sandbox_parts.hpp"

#include "sandbox/unit_spec.hpp"
#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/log.hpp"
#include "util/text.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace wd::sandbox {
namespace {

// Beyond the shim's own deadline, for a shim that hangs itself.
constexpr std::chrono::milliseconds kBootGrace{15'000};
// A guest that was restored answers in milliseconds, or never.
constexpr std::chrono::milliseconds kRestoreTimeout{20'000};

std::uint64_t clock_us(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

double span_ms(std::uint64_t from_us, std::uint64_t to_us) {
    return to_us > from_us ? static_cast<double>(to_us - from_us) / 1000 : 0;
}

} // namespace

std::uint64_t realtime_us() {
    return clock_us(CLOCK_REALTIME);
}
std::uint64_t monotonic_us() {
    return clock_us(CLOCK_MONOTONIC);
}

// ---- Sandbox

Sandbox::Sandbox(Context& context, store::SandboxRow row, Observer observer)
    : context_(context), row_(std::move(row)), observer_(std::move(observer)) {}

Sandbox::~Sandbox() = default;

std::string Sandbox::unit() const {
    return unit_name(row_.id);
}

void Sandbox::set_state(model::State state) {
    if (row_.state != state) {
        row_.state = state;
        observer_.changed(*this);
    }
}

// A failure here (a full disk) must not stop a sandbox from ending or being removed; what is lost
// is found again by asking PID 1 at the next start.
void Sandbox::save() {
    if (auto done = context_.store.put(row_); !done) {
        log::error(fmt::format("cannot save the state: {}", done.error().message), row_.id);
    }
}

void Sandbox::phase(model::Phase phase) {
    if (boot_ && boot_->on_phase) {
        boot_->on_phase(phase);
    }
}

void Sandbox::boot(PhaseCallback on_phase, Done done) {
    boot_ = std::make_unique<Boot>();
    boot_->on_phase = std::move(on_phase);
    boot_->done = std::move(done);
    boot_->fresh = row_.state == model::State::creating;
    boot_->admitted_us = monotonic_us();
    idle_.reset();
    if (!boot_->fresh) {
        boot_->disk_ready = true;
        boot_->waking = row_.state == model::State::standby;
        set_state(model::State::starting);
        save();
    }
    phase(model::Phase::queue);
    // Answers may come when this boot is over, and another has begun.
    const std::weak_ptr<bool> alive = boot_->alive;
    context_.probe.decide([this, alive](Result<AccelDecision> decision) {
        if (alive.expired()) {
            return;
        }
        if (!decision) {
            fail_boot(std::move(decision).error());
            return;
        }
        row_.accel = decision->accel;
        const auto admitted = [this, alive](BootQueue::Place place) {
            if (!alive.expired()) {
                begin_boot(std::move(place));
            }
        };
        // enter() may call back at once, and a failure there ends the boot.
        auto ticket = context_.queue.enter(admitted);
        if (!alive.expired()) {
            boot_->ticket = std::move(ticket);
        }
    });
}

void Sandbox::begin_boot(BootQueue::Place place) {
    boot_->place = std::move(place);
    if (auto done = prepare_boot(); !done) {
        fail_boot(std::move(done).error());
    }
}

Result<void> Sandbox::prepare_boot() {
    boot_->began_us = monotonic_us();
    phase(model::Phase::assign);
    auto image = context_.images.find(row_.spec.image, row_.spec.image_version);
    if (!image) {
        return fail(std::move(image).error());
    }
    boot_->image = std::move(*image);
    if (boot_->fresh) {
        if (auto done = make_sandbox_folder(context_.paths, row_.id); !done) {
            return done;
        }
        choose_path();
        if (auto done = prepare_disk(); !done) {
            return done;
        }
    } else if (boot_->waking) {
        if (auto done = choose_wake(); !done) {
            return done;
        }
    }
    auto guard =
        event::Timer::create(context_.loop, context_.config.vmm.boot_timeout + kBootGrace, [this] {
            fail_boot(Error{ErrorCode::timeout, 0,
                            fmt::format("{} did not become ready in time (vmm.boot_timeout in "
                                        "workdird.toml)",
                                        row_.id)});
        });
    if (!guard) {
        return fail(std::move(guard).error());
    }
    boot_->guard = std::move(*guard);
    return start_machine();
}

image::Shape Sandbox::shape() const {
    return {.cpus = row_.spec.cpus,
            .memory_bytes = row_.spec.memory_bytes,
            .disk_bytes = row_.spec.disk_bytes,
            .accel = row_.accel};
}

void Sandbox::choose_path() {
    auto golden = context_.goldens.find(*boot_->image, shape());
    if (!golden) {
        return;
    }
    if (::link(golden->disk().c_str(), context_.paths.base_layer(row_.id).c_str()) < 0) {
        log::warning(fmt::format("cannot use {}, booting cold: {}", golden->folder.string(),
                                 std::strerror(errno)),
                     row_.id);
        return;
    }
    boot_->golden = std::move(golden);
}

// The disk is made while the unit starts: neither needs the other.
Result<void> Sandbox::prepare_disk() {
    auto maker = DiskMaker::start(context_.loop, context_.paths.disk(row_.id), row_.spec.disk_bytes,
                                  [this, alive = std::weak_ptr(boot_->alive)](Result<void> made) {
                                      if (alive.expired()) {
                                          return;
                                      }
                                      if (!made) {
                                          fail_boot(std::move(made).error());
                                          return;
                                      }
                                      boot_->disk_ready = true;
                                      launch_when_possible();
                                  });
    if (!maker) {
        return fail(std::move(maker).error());
    }
    boot_->disk_maker = std::move(*maker);
    return {};
}

// The machine that was restored has gone before it was ready, and its guest has run nothing yet.
Result<void> Sandbox::boot_cold_instead(const std::string& why) {
    context_.goldens.reject(*boot_->golden, why);
    boot_->golden.reset();
    boot_->disk_ready = boot_->launched = false;
    for (const auto& file : {context_.paths.base_layer(row_.id), context_.paths.disk(row_.id)}) {
        if (::unlink(file.c_str()) < 0 && errno != ENOENT) {
            return fail_errno(errno, fmt::format("remove {}", file.string()));
        }
    }
    if (auto done = prepare_disk(); !done) {
        return done;
    }
    return start_machine();
}

void Sandbox::make_machine() {
    machine_ = std::make_unique<Machine>(
        context_.loop, context_.units, unit(), context_.paths.control_socket(row_.id),
        Machine::Listener{
            .on_phase = [this](model::Phase now) { phase(now); },
            .on_ready = [this](const control::Ready& ready) { on_ready(ready); },
            .on_hello = [this](const control::Hello& hello) { on_hello(hello); },
            .on_activity =
                [this](const control::Activity& activity) { on_activity(activity.sessions); },
            .on_snapshotted =
                [this](const control::Snapshotted& snapshotted) { on_snapshotted(snapshotted); },
            .on_snapshot_failed = [this](const std::string& why) { on_snapshot_failed(why); },
            .on_gone = [this](const control::Ended& ended) { on_gone(ended); }});
}

Result<void> Sandbox::start_machine() {
    boot_->unit_requested_us = monotonic_us();
    phase(model::Phase::unit);
    make_machine();
    auto started = machine_->start([this](int socket) {
        return vmm_unit_properties(
            {.id = row_.id,
             .description = row_.spec.name.empty()
                                ? fmt::format("Workdir sandbox {}", row_.id)
                                : fmt::format("Workdir sandbox {} ({})", row_.id, row_.spec.name),
             .accel = row_.accel,
             .cpus = row_.spec.cpus,
             .memory_bytes = row_.spec.memory_bytes,
             .disk_bytes = row_.spec.disk_bytes,
             .tasks_max = context_.config.tasks_max,
             .control_socket = socket});
    });
    if (!started) {
        machine_.reset(); // no unit was asked for
        return started;
    }
    launch_when_possible();
    return {};
}

void Sandbox::launch_when_possible() {
    if (!boot_ || !boot_->disk_ready || !machine_ || boot_->launched || boot_->failure) {
        return;
    }
    boot_->launched = true;
    if (auto done = launch(); !done) {
        fail_boot(std::move(done).error());
    }
}

Result<void> Sandbox::launch() {
    const std::string qemu = qemu_binary(context_.config, row_.accel);
    if (::access(qemu.c_str(), X_OK) < 0) {
        return fail_errno(errno,
                          fmt::format("the VMM {} cannot be run (install qemu-system-x86, or "
                                      "correct vmm.qemu in workdird.toml)",
                                      qemu),
                          ErrorCode::start_failed);
    }
    std::vector<Fd> fds;
    auto launch = describe_launch(fds);
    if (!launch) {
        return fail(std::move(launch).error());
    }
    launch->qemu = qemu;
    std::vector<int> borrowed;
    for (const Fd& fd : fds) {
        borrowed.push_back(fd.get());
    }
    return machine_->launch(*launch, borrowed);
}

// With the files it needs, in the order of control::Launch.
Result<control::Launch> Sandbox::describe_launch(std::vector<Fd>& fds) {
    const Paths& paths = context_.paths;
    auto guest = open_guest_files(context_.config);
    if (!guest) {
        return fail(std::move(guest).error());
    }
    Result<void> opened;
    const auto add = [&](const std::filesystem::path& path, int flags) {
        auto fd = opened ? open_file(path, flags) : fail(opened.error());
        if (fd) {
            fds.push_back(std::move(*fd));
        } else {
            opened = fail(std::move(fd).error());
        }
    };
    const auto timeout = context_.config.vmm.boot_timeout;
    control::Launch launch{
        .accel = row_.accel,
        .cpus = row_.spec.cpus,
        .memory_bytes = row_.spec.memory_bytes,
        .layers = {{.qcow2 = false, .read_only = true}},
        .hostname = row_.spec.name.empty() ? row_.id : row_.spec.name,
        .machine_id = row_.machine_id,
        .env = row_.spec.env,
        .boot_timeout_ms = static_cast<std::uint64_t>(
            (boot_->golden || boot_->standby ? std::min(timeout, kRestoreTimeout) : timeout)
                .count())};
    add(paths.console(row_.id), O_RDWR | O_APPEND);
    fds.push_back(std::move(guest->kernel));
    fds.push_back(std::move(guest->initramfs));
    if (boot_->golden || boot_->standby) {
        launch.restore = true;
        const auto folder = boot_->golden ? boot_->golden->folder : paths.standby(row_.id);
        add(folder / "memory", O_RDONLY);
        add(folder / "state", O_RDONLY);
    }
    add(boot_->image->root(), O_RDONLY);
    if (::access(paths.base_layer(row_.id).c_str(), F_OK) == 0) {
        launch.layers.push_back({.qcow2 = true, .read_only = true});
        add(paths.base_layer(row_.id), O_RDONLY);
    }
    launch.layers.push_back({.qcow2 = true, .read_only = false});
    add(paths.disk(row_.id), O_RDWR);
    if (!opened) {
        return fail(std::move(opened).error());
    }
    return launch;
}

void Sandbox::on_ready(const control::Ready& ready) {
    // A shim says so on every connection; its word does not undo a stop or a removal.
    if (!boot_ && row_.state != model::State::starting) {
        return;
    }
    const image::SnapshotInfo* const restored = !boot_           ? nullptr
                                                : boot_->golden  ? &boot_->golden->info
                                                : boot_->standby ? &*boot_->standby
                                                                 : nullptr;
    if (restored != nullptr) {
        row_.agent_version = restored->agent_version;
        row_.kernel_release = restored->kernel_release;
    } else if (!ready.agent_version.empty()) { // a restored guest does not say hello again
        row_.agent_version = printable(ready.agent_version, 64);
        row_.kernel_release = printable(ready.kernel_release, 64);
    }
    row_.invocation_id = machine_->invocation_id();
    if (!boot_) { // adopted in the middle of its boot, whose figures are lost
        adopted_guard_.reset();
        set_state(model::State::running);
        save();
        discard_standby();
        watch_idle();
        return;
    }
    if (boot_->failure) {
        return; // it is being killed
    }
    const std::uint64_t now = monotonic_us();
    const double hello_ms = span_ms(ready.vmm_us, ready.hello_us);
    const double agent_start_ms =
        std::min(hello_ms, static_cast<double>(ready.guest_agent_us) / 1000);
    row_.timings = {.queue = span_ms(boot_->admitted_us, boot_->began_us),
                    .assign = span_ms(boot_->began_us, boot_->unit_requested_us),
                    .unit = span_ms(boot_->unit_requested_us, ready.launch_us),
                    .vmm = span_ms(ready.launch_us, ready.vmm_us),
                    .kernel = hello_ms - agent_start_ms,
                    .agent = agent_start_ms + span_ms(ready.hello_us, ready.ready_us),
                    .ready = span_ms(boot_->admitted_us, now)};
    row_.boot_path = boot_->standby  ? model::BootPath::wake
                     : boot_->golden ? model::BootPath::snapshot_restore
                                     : model::BootPath::cold_boot;
    row_.started_us = realtime_us();
    row_.ended_us = 0;
    row_.end = {};
    // Without its row a new sandbox would be nobody's after a restart.
    store::SandboxRow running = row_;
    running.state = model::State::running;
    if (auto done = context_.store.put(running); !done && boot_->fresh) {
        fail_boot(std::move(done).error());
        return;
    } else if (!done) {
        log::error(fmt::format("cannot save the state: {}", done.error().message), row_.id);
    }
    set_state(model::State::running);
    log::notice(fmt::format("ready after {:.0f} ms ({}, {})", row_.timings.ready,
                            model::to_string(row_.boot_path), model::to_string(row_.accel)),
                row_.id);
    phase(model::Phase::ready);
    const auto boot = std::exchange(boot_, nullptr);
    discard_standby();
    watch_idle();
    boot->done({});
    answer_waiting({});
    if (boot->fresh && restored == nullptr) {
        context_.goldens.want(*boot->image, shape()); // for the next one
    }
}

// Ends the boot, with the machine if there is one by now.
void Sandbox::fail_boot(Error error) {
    if (boot_->failure) {
        return;
    }
    boot_->failure = error;
    boot_->disk_maker.reset();
    if (machine_) {
        machine_->kill({.reason = error.code == ErrorCode::timeout ? model::EndReason::timeout
                                                                   : model::EndReason::stopped,
                        .detail = error.message});
        return; // on_gone goes on
    }
    end_boot(std::move(error));
}

void Sandbox::on_gone(const control::Ended& ended) {
    machine_.reset();
    adopted_guard_.reset();
    idle_.reset();
    sessions_ = 0;
    failed_parks_ = 0;
    row_.invocation_id.clear();
    if (park_ && park_->snapshotted && ended.end.reason == model::EndReason::stopped &&
        row_.state == model::State::parking) {
        on_parked_machine_gone();
        return;
    }
    if (boot_ && boot_->golden && !boot_->failure) {
        if (auto done = boot_cold_instead(ended.end.detail); !done) {
            fail_boot(std::move(done).error());
        }
        return;
    }
    if (boot_) {
        Error error = boot_->failure.value_or(
            Error{ended.end.reason == model::EndReason::timeout ? ErrorCode::timeout
                                                                : ErrorCode::start_failed,
                  0, fmt::format("{} did not start: {}", row_.id, ended.end.detail)});
        if (!ended.console_tail.empty()) {
            error.message += fmt::format("\nThe last lines of its console:\n{}\nSee also: "
                                         "journalctl -u {}",
                                         ended.console_tail, unit());
        } else if (!boot_->failure) {
            error.message += fmt::format("; see journalctl -u {}", unit());
        }
        record_end(ended.end);
        end_boot(std::move(error));
        return;
    }
    record_end(ended.end);
    if (row_.state == model::State::deleting) {
        purge();
        return;
    }
    if (row_.state == model::State::starting && stopping_.empty() && has_standby()) {
        set_state(model::State::standby); // a wake that the last workdird had begun
        save();
        answer_waiting(fail(ErrorCode::start_failed,
                            fmt::format("{} was not woken: {}", row_.id, row_.end.detail)));
        return;
    }
    discard_standby();
    const bool in_order = ended.end.reason == model::EndReason::stopped;
    log::notice(fmt::format("ended: {} ({})", model::to_string(ended.end.reason), ended.end.detail),
                row_.id);
    set_state(in_order ? model::State::stopped : model::State::failed);
    save();
    if (const auto park = std::exchange(park_, nullptr)) {
        for (const Done& done : park->done) {
            done(fail(ErrorCode::wrong_state,
                      fmt::format("{} has ended: {}", row_.id, row_.end.detail)));
        }
    }
    finish_stops({});
    answer_waiting(
        fail(ErrorCode::wrong_state, fmt::format("{} has ended: {}", row_.id, row_.end.detail)));
}

void Sandbox::end_boot(Error error) {
    const auto boot = std::exchange(boot_, nullptr);
    if (row_.state == model::State::deleting || boot->fresh) {
        set_state(model::State::deleting);
        // The creator hears of it when nothing is left.
        removing_.insert(removing_.begin(),
                         [done = boot->done, error](const Result<void>&) { done(fail(error)); });
        purge();
        return;
    }
    if (boot->waking && stopping_.empty()) {
        set_state(
            model::State::standby); // where its disk has changed by now, the next wake sees it
        error.message += "; it stays in standby (wd stop gives its memory up and keeps its disk)";
    } else {
        discard_standby();
        set_state(row_.end.reason == model::EndReason::stopped ||
                          row_.end.reason == model::EndReason::none
                      ? model::State::stopped
                      : model::State::failed);
    }
    save();
    finish_stops({});
    boot->done(fail(error));
    answer_waiting(fail(error));
}

void Sandbox::record_end(model::End end) {
    row_.end = std::move(end);
    row_.ended_us = realtime_us();
}

void Sandbox::stop(std::chrono::milliseconds deadline, Done done) {
    switch (row_.state) {
    case model::State::stopped:
    case model::State::failed:
        done({});
        return;
    case model::State::creating:
        done(fail(
            ErrorCode::wrong_state,
            fmt::format("{} is being created; wait for it, or remove it with wd rm", row_.id)));
        return;
    case model::State::deleting:
        done(fail(ErrorCode::wrong_state, fmt::format("{} is being removed", row_.id)));
        return;
    case model::State::starting:
        stopping_.push_back(std::move(done));
        if (!boot_) { // adopted in the middle of its boot
            adopted_guard_.reset();
            set_state(model::State::stopping);
            save();
            machine_->shutdown(deadline);
            return;
        }
        fail_boot(Error{ErrorCode::cancelled, 0, fmt::format("{} was stopped", row_.id)});
        return;
    case model::State::running:
        set_state(model::State::stopping);
        save();
        stopping_.push_back(std::move(done));
        machine_->shutdown(deadline);
        return;
    case model::State::stopping:
    case model::State::parking: // and when that is done, it is stopped
        stopping_.push_back(std::move(done));
        return;
    case model::State::standby:
        discard_standby();
        record_end({.reason = model::EndReason::stopped, .detail = "stopped in standby"});
        set_state(model::State::stopped);
        save();
        done({});
        return;
    }
}

void Sandbox::remove(Done done) {
    removing_.push_back(std::move(done));
    if (row_.state == model::State::deleting) {
        return; // both callers hear when it is done
    }
    set_state(model::State::deleting);
    idle_.reset();
    const auto removed = fail(ErrorCode::cancelled, fmt::format("{} was removed", row_.id));
    if (const auto park = std::exchange(park_, nullptr)) {
        for (const Done& parked : park->done) {
            parked(removed);
        }
    }
    answer_waiting(removed);
    if (boot_) {
        fail_boot(Error{ErrorCode::cancelled, 0, fmt::format("{} was removed", row_.id)});
        return;
    }
    save();
    if (machine_) {
        machine_->kill({.reason = model::EndReason::deleted});
    } else {
        purge();
    }
}

// Out of sight at once, gone from the disk when the worker has done its part.
void Sandbox::purge() {
    if (std::exchange(purging_, true)) {
        return;
    }
    if (auto done = discard_sandbox_folder(context_.paths, row_.id); !done) {
        log::error(done.error().message, row_.id);
    }
    context_.worker.run([folder = context_.paths.sandboxes()] { return remove_trash(folder); },
                        [this, alive = std::weak_ptr(alive_)](Result<void> removed) {
                            if (!alive.expired()) {
                                end_purge(std::move(removed));
                            }
                        });
}

// What is left after a failure is tried again when workdird starts; the callers hear of it.
void Sandbox::end_purge(Result<void> removed) {
    if (auto done = context_.store.remove(row_.id); !done && removed) {
        removed = std::move(done);
    }
    if (!removed) {
        log::error(removed.error().message, row_.id);
        removed.error().message += "; the rest goes when workdird is restarted";
    }
    finish_stops({});
    const auto waiting = std::exchange(removing_, {});
    const auto removed_callback = observer_.removed;
    removed_callback(*this);
    for (const Done& done : waiting) {
        done(removed);
    }
}

void Sandbox::finish_stops(const Result<void>& result) {
    for (const Done& done : std::exchange(stopping_, {})) {
        done(result);
    }
}

Result<Fd> Sandbox::open_console() const {
    return open_file(context_.paths.console(row_.id), O_RDONLY);
}

// Its shim may still wait for a launch that the last workdird did not send any more.
Result<void> Sandbox::guard_adopted_boot() {
    auto guard =
        event::Timer::create(context_.loop, context_.config.vmm.boot_timeout + kBootGrace, [this] {
            machine_->kill({.reason = model::EndReason::timeout, .detail = "not ready in time"});
        });
    if (!guard) {
        return fail(std::move(guard).error());
    }
    adopted_guard_ = std::move(*guard);
    return {};
}

Result<void> Sandbox::adopt(const pid1::UnitState& unit_state) {
    row_.invocation_id = unit_state.invocation_id;
    make_machine();
    if (row_.state == model::State::parking) {
        adopt_park();
    }
    if (auto done = machine_->adopt(); !done) {
        // The unit runs but its shim cannot be reached: it is of no use any more.
        log::warning(fmt::format("cannot adopt: {}", done.error().message), row_.id);
        machine_->kill({.reason = model::EndReason::agent_lost, .detail = done.error().message});
        return done;
    }
    if (row_.state == model::State::running) {
        discard_standby(); // a wake, and then workdird ended
        watch_idle();
    } else if (row_.state == model::State::stopping) {
        machine_->shutdown(std::chrono::seconds(10));
    } else if (row_.state == model::State::deleting) {
        machine_->kill({.reason = model::EndReason::deleted});
    } else if (row_.state == model::State::starting) {
        return guard_adopted_boot();
    }
    return {};
}

void Sandbox::ended_while_away(const pid1::UnitState& unit_state) {
    if (row_.state == model::State::deleting || row_.state == model::State::creating) {
        set_state(model::State::deleting);
        purge();
        return;
    }
    if (!model::is_live(row_.state)) {
        return;
    }
    row_.invocation_id.clear();
    // In the middle of a wake; or parked, and the last workdird could not write that down any more.
    if ((row_.state == model::State::starting || row_.state == model::State::parking) &&
        has_standby()) {
        set_state(model::State::standby);
        save();
        return;
    }
    model::End end{.reason = model::EndReason::stopped,
                   .detail = "it ended while workdird was not running, or the host was restarted"};
    if (unit_state.active_state == "failed") {
        end = Machine::end_of(unit_state);
    }
    record_end(end);
    discard_standby();
    set_state(end.reason == model::EndReason::stopped ? model::State::stopped
                                                      : model::State::failed);
    save();
}

} // namespace wd::sandbox
