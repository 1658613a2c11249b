#include "shim/shim.hpp"

#include "util/log.hpp"
#include "util/text.hpp"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

namespace wd::shim {
namespace {

using namespace std::chrono_literals;

constexpr auto kStopDeadline = 10s; // of a stop that names none: systemctl stop
constexpr auto kLinger = 1s;        // for clients that have not read their last bytes
constexpr auto kStatusInterval = 1s;

} // namespace

Shim::Shim(event::Loop& loop)
    : loop_(loop), sessions_(loop, [this] {
          notify_status();
          notify_activity();
          leave_when_flushed();
      }) {}

Result<std::unique_ptr<Shim>> Shim::create(event::Loop& loop, Fd listener, uid_t trusted) {
    std::unique_ptr<Shim> shim(new Shim(loop));
    Shim* const self = shim.get();
    auto control =
        ControlServer::create(loop, std::move(listener), trusted,
                              {.on_connected = [self] { self->on_connected(); },
                               .on_request =
                                   [self](control::Request request, std::vector<Fd> fds) {
                                       self->on_request(std::move(request), std::move(fds));
                                   }});
    if (!control) {
        return fail(std::move(control).error());
    }
    shim->control_ = std::move(*control);
    const auto on_signal = [self](const signalfd_siginfo&) { self->stop(kStopDeadline); };
    auto terminate = event::Signal::create(loop, SIGTERM, on_signal);
    auto interrupt = event::Signal::create(loop, SIGINT, on_signal);
    if (!terminate || !interrupt) {
        return fail(!terminate ? std::move(terminate).error() : std::move(interrupt).error());
    }
    shim->terminate_ = std::move(*terminate);
    shim->interrupt_ = std::move(*interrupt);
    // The one that must arrive, and nothing waits for us yet.
    (void)::sd_notify(0, "READY=1");
    shim->set_status("waiting for a launch");
    return shim;
}

void Shim::on_connected() {
    control_->send(control::Hello{.state = ended_ ? control::ShimState::ended
                                           : vm_ && vm_->snapshotting()
                                               ? control::ShimState::snapshotting
                                           : ready_ ? control::ShimState::running
                                           : vm_    ? control::ShimState::launching
                                                    : control::ShimState::waiting,
                                  .sessions = static_cast<std::uint32_t>(sessions_.size())});
    if (ready_) {
        control_->send(*ready_);
    }
    if (snapshotted_) {
        control_->send(*snapshotted_);
    }
    if (ended_) {
        control_->send(*ended_);
    }
}

void Shim::on_request(control::Request request, std::vector<Fd> fds) {
    if (auto* launch = std::get_if<control::Launch>(&request)) {
        on_launch(std::move(*launch), std::move(fds));
    } else if (const auto* shutdown = std::get_if<control::Shutdown>(&request)) {
        stop(std::chrono::milliseconds(shutdown->deadline_ms));
    } else if (const auto* snapshot = std::get_if<control::Snapshot>(&request)) {
        if (vm_) {
            vm_->snapshot(*snapshot, std::move(fds));
        } else {
            control_->send(control::SnapshotFailed{.message = "nothing runs here"});
        }
    } else if (fds.size() == 2) {
        sessions_.open(std::move(fds[0]), std::move(fds[1]));
    } else {
        log::error("a session came without its file descriptors");
    }
}

void Shim::on_launch(control::Launch launch, std::vector<Fd> fds) {
    if (vm_ || ended_) {
        log::error("a second launch is ignored");
        return;
    }
    auto vm = Vm::launch(
        loop_, std::move(launch), std::move(fds), sessions_,
        {.on_phase =
             [this](model::Phase phase) { control_->send(control::Progress{.phase = phase}); },
         .on_ready =
             [this](const control::Ready& ready) {
                 ready_ = ready;
                 control_->send(ready);
             },
         .on_snapshotted =
             [this](const control::Snapshotted& snapshotted) {
                 snapshotted_ = snapshotted;
                 control_->send(snapshotted);
             },
         .on_snapshot_failed =
             [this](const std::string& why) {
                 control_->send(control::SnapshotFailed{.message = printable(why, 500)});
             },
         .on_status = [this](const std::string& status) { set_status(status); },
         .on_ended = [this](const control::Ended& ended) { on_ended(ended); }});
    if (!vm) {
        on_ended({.end = {.reason = model::EndReason::vmm_crash,
                          .detail = printable(vm.error().message, 500)}});
        return;
    }
    vm_ = std::move(*vm);
}

void Shim::stop(std::chrono::milliseconds deadline) {
    if (vm_) {
        (void)notifier_.send("STOPPING=1");
        vm_->stop(deadline);
    } else if (!ended_) {
        on_ended({.end = {.reason = model::EndReason::stopped,
                          .detail = "stopped before anything was launched"}});
    }
}

void Shim::on_ended(const control::Ended& ended) {
    ended_ = ended;
    log::notice(
        fmt::format("ended ({}): {}", model::to_string(ended.end.reason), ended.end.detail));
    set_status(fmt::format("ended ({}): {}", model::to_string(ended.end.reason), ended.end.detail));
    sessions_.close_all(
        {.kind = wire::Failure::Kind::unreachable,
         .message = fmt::format("the sandbox has ended ({}): {}",
                                model::to_string(ended.end.reason), ended.end.detail)});
    control_->send(ended);
    auto linger = event::Timer::create(
        loop_, kLinger, [this] { loop_.exit(control::exit_status_of(ended_->end.reason)); });
    if (linger) {
        linger_ = std::move(*linger);
    }
    leave_when_flushed();
}

// workdird parks what nobody uses.
void Shim::notify_activity() {
    const bool active = sessions_.size() > 0;
    if (ready_ && !ended_ && active != active_) {
        active_ = active;
        control_->send(control::Activity{.sessions = static_cast<std::uint32_t>(sessions_.size())});
    }
}

// What a socket holds survives the end of its writer; only what is still here must be waited for.
void Shim::leave_when_flushed() {
    if (ended_ && sessions_.size() == 0 && (control_->flushed() || !linger_)) {
        loop_.exit(control::exit_status_of(ended_->end.reason));
    }
}

void Shim::set_status(std::string status) {
    status_ = std::move(status);
    status_timer_.reset();
    notify_status();
}

// Sessions may come and go a thousand times a second, and each notification wakes PID 1.
void Shim::notify_status() {
    if (status_timer_) {
        return;
    }
    const std::size_t count = sessions_.size();
    std::string text = !status_.empty()
                           ? status_
                           : fmt::format("running, {} session{}", count, count == 1 ? "" : "s");
    if (text == notified_) {
        return;
    }
    if (notifier_.send("STATUS=" + text)) {
        notified_ = std::move(text);
    }
    auto timer = event::Timer::create(loop_, kStatusInterval, [this] {
        status_timer_.reset();
        notify_status();
    });
    if (timer) {
        status_timer_ = std::move(*timer);
    }
}

} // namespace wd::shim
