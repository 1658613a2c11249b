// Vm: restoring the guest from a snapshot, and making one of it.
//
// quiesce (frozen, synced) -> stop -> device state -> memory -> quit. What goes wrong before the
// end is undone: cont, and a Setup thaws the guest, with the time of day that it has missed.

#include "shim/vm.hpp"
#include "util/log.hpp"
#include "vmm/command_line.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>

namespace wd::shim {
namespace {

using namespace std::chrono_literals;
using model::EndReason;

// The kernel looks for free pages to report every two seconds (PAGE_REPORTING_DELAY in
// mm/page_reporting.c), and says to nobody when it has done so: two rounds.
constexpr auto kPageReporting = 4500ms;
constexpr std::chrono::milliseconds kQuietTime = 30s; // to freeze and sync

} // namespace

void Vm::load_state() {
    handler_.on_status("restoring the guest");
    auto sent = qmp_->execute(
        "migrate-incoming",
        [this](const Result<void>& done) {
            if (!done) {
                finish(EndReason::vmm_crash,
                       "the snapshot cannot be loaded: " + done.error().message);
            }
        },
        vmm::load_state_arguments(state_fd_));
    if (!sent) {
        finish(EndReason::vmm_crash, "the snapshot cannot be loaded: " + sent.error().message);
    } // and then QEMU resumes, or ends
}

// The agent goes on where it was, which is after its hello: it waits for a Setup.
void Vm::on_resumed() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    ready_.hello_us = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
                      static_cast<std::uint64_t>(now.tv_nsec) / 1000;
    stage_ = Stage::agent;
    handler_.on_phase(model::Phase::agent);
    handler_.on_status("setting up the guest");
    send_setup(version_);
}

void Vm::snapshot(const control::Snapshot& request, std::vector<Fd> fds) {
    const std::size_t sessions = sessions_.size();
    if (stage_ != Stage::running || launch_.probe || stopping_ || no_space_ || snapshot_ ||
        thawing_ || sessions > 0 || fds.size() != 2) {
        handler_.on_snapshot_failed(
            sessions > 0 ? fmt::format("it has {} session{}", sessions, sessions == 1 ? "" : "s")
            : no_space_  ? "its disk has no space"
            : thawing_   ? "it is still writing to its disk, since the last time"
                         : "it is not running, or another snapshot of it is");
        return;
    }
    snapshot_.emplace();
    snapshot_->compact = request.compact;
    snapshot_->memory = std::move(fds[0]);
    snapshot_->state = std::move(fds[1]);
    handler_.on_status("taking a snapshot");
    guest_->send({.type = wire::FrameType::quiesce,
                  .flag = request.compact ? wire::kCompact : std::uint8_t{0}});
    guest_->flush();
    const auto limit = std::min<std::chrono::milliseconds>(
        kQuietTime, std::chrono::milliseconds(launch_.boot_timeout_ms));
    snapshot_->timer = timer(limit, [this] { give_up_quiet(); });
}

// It has much to write, or is stuck: it may take as long as it likes, and is thawed after that.
void Vm::give_up_quiet() {
    snapshot_.reset();
    thawing_ = true;
    send_setup(version_);
    handler_.on_status("");
    handler_.on_snapshot_failed("the guest was not done with writing to its disk in time");
}

void Vm::on_quiesced() {
    if (thawing_) {
        return;
    }
    snapshot_->quiesced = true;
    snapshot_->timer.reset();
    if (snapshot_->compact) {
        snapshot_->timer = timer(kPageReporting, [this] { save_state(); });
    } else {
        save_state();
    }
}

void Vm::save_state() {
    snapshot_->timer.reset();
    if (auto rewound = writer_->rewind_state(); !rewound || no_space_) {
        fail_snapshot(rewound ? "a write to its disk found no space" : rewound.error().message);
        return;
    }
    const auto on_reply = [this](const Result<void>& done) {
        if (!done && snapshot_ && snapshot_->failure.empty()) {
            fail_snapshot(done.error().message);
        }
    };
    (void)qmp_->execute("stop", on_reply);
    (void)qmp_->execute(
        "xen-save-devices-state",
        [this, on_reply](const Result<void>& done) {
            on_reply(done);
            if (done && snapshot_ && snapshot_->failure.empty()) {
                write_snapshot();
            }
        },
        vmm::save_state_arguments());
}

void Vm::write_snapshot() {
    writer_->write(qemu_->pid(), std::move(snapshot_->memory), std::move(snapshot_->state),
                   [this](Result<SnapshotWriter::Written> written) {
                       if (!snapshot_) {
                           return; // it has ended meanwhile
                       }
                       if (!written) {
                           fail_snapshot(std::move(written).error().message);
                           return;
                       }
                       if (no_space_) {
                           fail_snapshot("a write to its disk found no space");
                           return;
                       }
                       if (!stopping_) {
                           stopping_ = true; // its own end is in order from here on
                           facts_.stop = "its snapshot is complete";
                           handler_.on_snapshotted({.dirty_bytes = written->dirty_bytes});
                           quit();
                       }
                   });
}

// Told when the guest runs again: become_ready().
void Vm::fail_snapshot(std::string why) {
    log::warning("no snapshot: " + why);
    if (stopping_) {
        return; // QEMU has been told to quit
    }
    snapshot_->failure = std::move(why);
    (void)qmp_->execute("cont");
    stage_ = Stage::agent;
    boot_timer_ =
        timer(std::chrono::milliseconds(launch_.boot_timeout_ms), [this] { on_boot_timeout(); });
    send_setup(version_);
}

} // namespace wd::shim
