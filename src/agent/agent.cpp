#include "agent/agent.hpp"

#include "agent/clock.hpp"
#include "agent/console.hpp"
#include "agent/environment.hpp"
#include "agent/identity.hpp"
#include "agent/root_fs.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace wd::agent {
namespace {

using wire::FrameType;

constexpr std::uint64_t kDiskDeadline = 5 * kSecond;
constexpr std::uint64_t kStopGrace = 3 * kSecond; // from SIGTERM to SIGKILL
constexpr std::uint64_t kKillGrace = 2 * kSecond; // what survives SIGKILL that long hangs for ever

unsigned long long ms(std::uint64_t ns) {
    return ns / kMillisecond;
}

} // namespace

Agent::ChildSignals::ChildSignals(Poller& poller, Fd fd) {
    auto watched = Watched::create(poller, std::move(fd), EPOLLIN, *this);
    if (watched) {
        fd_ = std::move(*watched);
    }
}

bool Agent::ChildSignals::take() {
    // What is read here has perhaps not been reported yet, and then never will be.
    signalfd_siginfo info[8];
    while (::read(fd_.get(), info, sizeof info) > 0) {
        arrived_ = true;
    }
    return std::exchange(arrived_, false);
}

Agent::Agent(Poller& poller, Port& port, Fd child_signals, std::uint64_t start_ns)
    : poller_(poller),
      port_(port),
      child_signals_(poller, std::move(child_signals)),
      start_ns_(start_ns),
      drains_(poller) {}

void Agent::run() {
    for (bool more = false;;) {
        poller_.wait(more ? 0 : timeout_ms());
        on_connection();
        if (child_signals_.take()) {
            const bool children = execs_ ? execs_->reap() : false;
            go_on_with_shutdown(children);
        }
        // What the host sends waits while it takes nothing from us.
        more = port_.queued() < Port::kMostQueued && port_.fill();
        while (const auto frame = port_.next()) {
            if (frame->channel == 0) {
                on_control(*frame);
            } else if (execs_) {
                execs_->on_frame(*frame);
            } else {
                on_frame_before_setup(*frame);
            }
        }
        if (port_.violation() != wire::FrameReader::Violation::none) {
            const auto what = wire::to_string(port_.violation());
            console("the host sent %.*s; nothing more is read from it",
                    static_cast<int>(what.size()), what.data());
            port_.ignore_input();
            if (execs_) {
                execs_->orphan_all();
            }
        }
        if (const std::uint64_t now = boot_ns(); execs_) {
            execs_->on_time(now);
            if (state_ == State::stopping && now >= stop_deadline_) {
                go_on_with_shutdown(true);
            }
            more = execs_->pump() || more;
            execs_->sweep();
        } else {
            port_.flush();
        }
        more = drains_.run() || more;
    }
}

int Agent::timeout_ms() const {
    const std::uint64_t deadline = std::min(execs_ ? execs_->deadline() : kNever, stop_deadline_);
    if (deadline == kNever) {
        return -1;
    }
    const std::uint64_t now = boot_ns();
    return deadline <= now ? 0
                           : static_cast<int>(std::min<std::uint64_t>(
                                 (deadline - now) / kMillisecond + 1, 3'600'000));
}

void Agent::on_connection() {
    Port::Change change;
    while ((change = port_.take_change()) != Port::Change::none) {
        setup_.clear();
        if (change == Port::Change::connected) {
            say_hello();
        } else {
            console("the host side of the channel is gone; commands go on");
            if (execs_) {
                execs_->orphan_all();
            }
        }
    }
}

void Agent::say_hello() {
    utsname names{};
    ::uname(&names);
    const std::uint64_t now = boot_ns();
    const wire::Bytes payload = wire::encode(wire::Hello{.agent_version = WORKDIR_VERSION,
                                                         .kernel_release = names.release,
                                                         .agent_start_ns = start_ns_,
                                                         .now_ns = now});
    wire::append_frame(port_.out(), {.type = FrameType::hello, .payload = payload});
    port_.flush();
    console("workdir " WORKDIR_VERSION " on Linux %s, up after %llu ms", names.release, ms(now));
}

void Agent::on_control(const wire::Frame& frame) {
    switch (frame.type) {
    case FrameType::setup:
        on_setup_piece(frame);
        break;
    case FrameType::ping:
        wire::append_frame(port_.out(), {.type = FrameType::pong, .payload = frame.payload});
        break;
    case FrameType::quiesce:
        if (state_ == State::ready) {
            cgroups_->freeze();
            quiesce_root((frame.flag & wire::kCompact) != 0);
            wire::append_frame(port_.out(), {.type = FrameType::quiesced});
            port_.flush();
        }
        break;
    case FrameType::shutdown:
        begin_shutdown();
        break;
    default:
        console("the host sent a frame of type %#x on channel 0; ignored",
                static_cast<unsigned>(frame.type));
        break;
    }
}

void Agent::on_setup_piece(const wire::Frame& frame) {
    // One too long is cut, and then is malformed.
    const std::size_t room = wire::kMaxExecRequest - setup_.size();
    const auto piece = frame.payload.first(std::min(room, frame.payload.size()));
    setup_.insert(setup_.end(), piece.begin(), piece.end());
    if ((frame.flag & wire::kMore) != 0) {
        return;
    }
    const wire::Bytes whole = std::exchange(setup_, {});
    if (const auto setup = wire::decode<wire::Setup>(whole)) {
        on_setup(*setup);
    } else {
        console("the host sent a malformed setup");
        on_setup({.version = 0});
    }
}

void Agent::on_frame_before_setup(const wire::Frame& frame) {
    if (frame.type == FrameType::open && (frame.flag & wire::kMore) == 0) {
        const wire::Bytes payload =
            wire::encode(wire::Failure{FailureKind::other, EAGAIN,
                                       state_ == State::failed ? "the setup of the sandbox failed"
                                                               : "the sandbox is not set up yet"});
        wire::append_frame(
            port_.out(),
            {.channel = frame.channel, .type = FrameType::open_failed, .payload = payload});
    }
}

void Agent::on_setup(const wire::Setup& setup) {
    const std::uint64_t received = boot_ns();
    if (state_ == State::stopping) {
        return;
    }
    auto ready = state_ == State::failed
                     ? failure(FailureKind::other, EINVAL, "an earlier setup failed")
                     : set_up(setup, received);
    if (ready) {
        state_ = State::ready;
        cgroups_->thaw();
        execs_->set_environment(setup.env);
        execs_->refuse({});
        console("ready after %llu ms (mount %llu ms, identity %llu ms)", ms(boot_ns()),
                ms(ready->mount_ns), ms(ready->identity_ns));
        wire::append_frame(port_.out(),
                           {.type = FrameType::ready, .payload = wire::encode(*ready)});
        port_.flush();
        settle();
        return;
    }
    // Fail closed: without its identity the machine runs nothing.
    state_ = State::failed;
    if (execs_) {
        execs_->refuse("the setup of the sandbox failed");
    }
    console("setup failed: %s", ready.error().message.c_str());
    wire::append_frame(port_.out(),
                       {.type = FrameType::failed, .payload = wire::encode(ready.error())});
}

Outcome<wire::Ready> Agent::set_up(const wire::Setup& setup, std::uint64_t received_ns) {
    const auto pass_on = [](wire::Failure& error) { return tl::unexpected(std::move(error)); };
    if (setup.version < wire::kOldestProtocolVersion || setup.version > wire::kProtocolVersion) {
        return failure(FailureKind::other, EPROTO,
                       "the host wants protocol version " + std::to_string(setup.version) +
                           ", this agent speaks " + std::to_string(wire::kOldestProtocolVersion) +
                           " to " + std::to_string(wire::kProtocolVersion));
    }
    if (!std::all_of(setup.env.begin(), setup.env.end(), is_variable)) {
        return failure(FailureKind::other, EINVAL,
                       "an environment entry is not of the form NAME=VALUE");
    }
    // The clock first, so that files written from here on have the right time.
    if (auto done = set_clock(setup, received_ns); !done) {
        return pass_on(done.error());
    }
    const std::uint64_t clock_set = boot_ns();
    if (!mounted_) {
        auto root = mount_root(setup.root_device, clock_set + kDiskDeadline);
        if (!root) {
            return pass_on(root.error());
        }
        mounted_ = true;
        root_ = *root;
    }
    const std::uint64_t mounted = boot_ns();
    // A guest that comes back under its own names keeps what its users have made of them since.
    const std::string names = std::string(setup.hostname) + '\n' + std::string(setup.machine_id);
    if (auto done = set_identity(setup, names != names_); !done) {
        return pass_on(done.error());
    }
    names_ = names;
    if (!execs_) {
        auto cgroups = CgroupTree::create(poller_);
        if (!cgroups) {
            return pass_on(cgroups.error());
        }
        cgroups_ = std::move(*cgroups);
        execs_ = std::make_unique<ExecTable>(Exec::Parts{poller_, port_, *cgroups_, drains_});
    }
    return wire::Ready{.mount_ns = mounted - clock_set,
                       .identity_ns = clock_set - received_ns + (boot_ns() - mounted),
                       .root_bytes = root_.bytes};
}

void Agent::settle() {
    if (!std::exchange(root_.grown, false)) {
        return;
    }
    if (const pid_t child = ::fork(); child == 0) { // reaped with all other orphans
        settle_root();
        ::_exit(0);
    } else if (child < 0) {
        settle_root();
    }
}

void Agent::begin_shutdown() {
    if (state_ == State::stopping) {
        return;
    }
    state_ = State::stopping;
    console("shutting down");
    if (execs_) {
        execs_->refuse("the sandbox is shutting down");
    }
    ::kill(-1, SIGTERM);
    ::kill(-1, SIGCONT);
    stop_deadline_ = boot_ns() + kStopGrace;
    go_on_with_shutdown(execs_ && execs_->reap());
}

void Agent::go_on_with_shutdown(bool children) {
    if (state_ != State::stopping) {
        return;
    }
    const bool late = boot_ns() >= stop_deadline_;
    if (children && late && !stop_killed_) {
        stop_killed_ = true;
        ::kill(-1, SIGKILL);
        stop_deadline_ = boot_ns() + kKillGrace;
        return;
    }
    if (children && !late) {
        return;
    }
    // The rest of what they said, as far as the host takes it now.
    if (execs_) {
        execs_->pump();
    }
    port_.flush();
    if (mounted_) {
        unmount_all();
    }
    console("down after %llu ms", ms(boot_ns()));
    ::reboot(RB_AUTOBOOT);
    for (;;) {
        ::pause();
    }
}

} // namespace wd::agent
