#include "shim/vm.hpp"

#include "util/log.hpp"
#include "util/text.hpp"
#include "vmm/command_line.hpp"
#include "vmm/tsc.hpp"

#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>

namespace wd::shim {
namespace {

using namespace std::chrono_literals;
using model::EndReason;

constexpr const char* kRamLibrary = "/usr/lib/workdir/workdir-ram.so"; // src/ram
constexpr auto kQuitGrace = 2s; // from QMP's quit to SIGKILL: closes the disk layers
constexpr auto kExitGrace = 2s; // from a lost connection to the exit that explains it
constexpr auto kDiskRetry = 5s;
constexpr auto kDiskSettle = 2s;          // without an error for so long, a retry has succeeded
constexpr unsigned kLogEveryRetries = 60; // every five minutes
constexpr int kSocketBuffer = 256 * 1024; // what the kernel may cut to net.core.wmem_max

std::uint64_t now_us() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

std::uint64_t realtime_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

// Ours is non-blocking, QEMU sets its own up by itself.
Result<SocketPair> connection() {
    auto pair = socket_pair(SOCK_STREAM);
    if (!pair) {
        return pair;
    }
    for (const int fd : {pair->first.get(), pair->second.get()}) {
        (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
    }
    if (auto done = set_nonblocking(pair->first.get()); !done) {
        return fail(std::move(done).error());
    }
    return pair;
}

std::string shown(std::chrono::milliseconds span) {
    return fmt::format("{:g} s", static_cast<double>(span.count()) / 1000);
}

// Console log, kernel, initramfs; memory and state.
std::size_t fixed_fds(const control::Launch& launch) {
    return launch.restore ? 5 : 3;
}

Result<void> check(const control::Launch& launch, std::size_t fds) {
    if (fds != fixed_fds(launch) + launch.layers.size()) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("a launch with {} layers came with {} file descriptors",
                                launch.layers.size(), fds));
    }
    if (launch.qemu.empty() || launch.qemu[0] != '/' || launch.cpus == 0 ||
        launch.memory_bytes == 0 || launch.boot_timeout_ms == 0 ||
        (launch.layers.empty() && !launch.probe)) {
        return fail(ErrorCode::invalid_argument, "a launch with a value missing");
    }
    return {};
}

} // namespace

Result<std::unique_ptr<Vm>> Vm::launch(const event::Loop& loop, control::Launch launch,
                                       std::vector<Fd> fds, SessionTable& sessions,
                                       Handler handler) {
    if (auto good = check(launch, fds.size()); !good) {
        return fail(std::move(good).error());
    }
    std::unique_ptr<Vm> vm(new Vm(loop, std::move(launch), sessions, std::move(handler)));
    if (auto done = vm->start(std::move(fds)); !done) {
        return fail(std::move(done).error());
    }
    return vm;
}

Result<void> Vm::start(std::vector<Fd> fds) {
    ready_.launch_us = now_us();
    facts_.before = read_own_cgroup_events();
    auto qmp = connection();
    auto agent = connection();
    auto serial = connection();
    for (auto* pair : {&qmp, &agent, &serial}) {
        if (!*pair) {
            return fail(std::move(*pair).error());
        }
    }
    vmm::VmConfig config{.qemu = launch_.qemu,
                         .accel = launch_.accel,
                         .cpus = launch_.cpus,
                         .memory_bytes = launch_.memory_bytes,
                         .tsc_khz = launch_.accel == model::Accel::tcg ? vmm::measure_tsc_khz() : 0,
                         .kernel_fd = fds[1].get(),
                         .initrd_fd = fds[2].get(),
                         .qmp_fd = qmp->second.get(),
                         .agent_fd = agent->second.get(),
                         .console_fd = serial->second.get()};
    std::vector<int> inherited{config.kernel_fd, config.initrd_fd, config.qmp_fd, config.agent_fd,
                               config.console_fd};
    if (launch_.restore) {
        state_fd_ = fds[4].get();
        inherited.push_back(state_fd_);
    }
    auto writer = SnapshotWriter::create(loop_, launch_.restore ? std::move(fds[3]) : Fd(),
                                         launch_.memory_bytes);
    if (!writer) {
        return fail(std::move(writer).error());
    }
    writer_ = std::move(*writer);
    config.restore = launch_.restore;
    config.memory_fd = writer_->memory_fd();
    config.state_fd = writer_->state_fd();
    inherited.insert(inherited.end(), {config.memory_fd, config.state_fd});
    const std::vector<std::string> environment{
        fmt::format("LD_PRELOAD={}", kRamLibrary),
        fmt::format("WORKDIR_RAM=/proc/self/fd/{}", config.memory_fd)};
    for (std::size_t i = 0; i < launch_.layers.size(); ++i) {
        const int fd = fds[fixed_fds(launch_) + i].get();
        config.layers.push_back(
            {.fd = fd, .qcow2 = launch_.layers[i].qcow2, .read_only = launch_.layers[i].read_only});
        inherited.push_back(fd);
    }

    auto console = Console::create(loop_, std::move(serial->first), std::move(fds[0]));
    auto channel = GuestChannel::create(loop_, std::move(agent->first), *this);
    auto client = vmm::QmpClient::create(
        loop_, std::move(qmp->first),
        {.on_greeting = [this](const vmm::QmpGreeting&) { on_greeting(); },
         .on_event = [this](const vmm::QmpEvent& event) { on_qmp_event(event); },
         .on_lost = [this](const Error& error) { on_qmp_lost(error); }});
    if (!console || !channel || !client) {
        return fail(!console   ? std::move(console).error()
                    : !channel ? std::move(channel).error()
                               : std::move(client).error());
    }
    console_ = std::move(*console);
    guest_ = std::move(*channel);
    qmp_ = std::move(*client);

    handler_.on_phase(model::Phase::vmm);
    handler_.on_status("starting QEMU");
    auto qemu = QemuProcess::spawn(loop_, vmm::command_line(config), environment, inherited,
                                   [this](const siginfo_t& info) { on_exit(info); });
    if (!qemu) {
        return fail(std::move(qemu).error());
    }
    qemu_ = std::move(*qemu);
    const std::chrono::milliseconds limit(launch_.boot_timeout_ms);
    boot_timer_ = timer(limit, [this] { on_boot_timeout(); });
    // What QEMU has inherited is closed here, so that its end is an end of file for us.
    return {};
}

event::Timer Vm::timer(std::chrono::milliseconds after, std::function<void()> callback) {
    auto timer = event::Timer::create(loop_, after, std::move(callback));
    if (!timer) {
        // Only for want of memory. Without its deadlines a guest cannot be managed.
        log::error(timer.error().message);
        finish(EndReason::vmm_crash, timer.error().message);
        return {};
    }
    return std::move(*timer);
}

// ---- QMP

void Vm::on_greeting() {
    if (ready_.vmm_us == 0) {
        ready_.vmm_us = now_us();
    }
    (void)qmp_->execute("qmp_capabilities", [this](const Result<void>& done) {
        if (!done) {
            finish(EndReason::vmm_crash, done.error().message);
        }
    });
    if (stage_ != Stage::vmm) {
        return; // the guest was faster than this answer
    }
    stage_ = Stage::kernel;
    handler_.on_phase(model::Phase::kernel);
    if (launch_.restore) {
        load_state();
    } else {
        handler_.on_status("booting the guest kernel");
    }
}

void Vm::on_qmp_event(const vmm::QmpEvent& event) {
    log::debug(fmt::format("qmp: {} {}", event.name, event.reason));
    if (event.name == "SHUTDOWN") {
        if (facts_.shutdown_reason.empty()) {
            facts_.shutdown_reason = event.reason;
        }
    } else if (event.name == "RESUME" && stage_ == Stage::kernel && launch_.restore) {
        on_resumed();
    } else if (event.name == "BLOCK_IO_ERROR" && event.action == "stop") {
        on_no_space();
    } else if (event.name == "VSERPORT_CHANGE" && event.id == vmm::kAgentPortId && !event.open &&
               (stage_ == Stage::agent || stage_ == Stage::running) && !stopping_) {
        finish_unless_exit_follows(EndReason::agent_lost, "the agent closed its port");
    }
}

void Vm::on_qmp_lost(const Error& error) {
    if (facts_.channel_error.empty()) {
        facts_.channel_error = error.message;
    }
    if (error.code == ErrorCode::invalid_argument) {
        finish(EndReason::vmm_crash, error.message);
    } else {
        finish_unless_exit_follows(EndReason::vmm_crash, error.message);
    }
}

// QEMU has paused the guest, since a write to its disk found no space (werror=enospc); the request
// is repeated when it goes on. Each request that is in flight brings an event of its own.
void Vm::on_no_space() {
    ++no_space_errors_;
    if (no_space_) {
        return; // the retries go on
    }
    no_space_ = true;
    no_space_retries_ = 0;
    log::warning("no space left on the host for the disk: the guest is paused, and goes on as soon "
                 "as there is some");
    handler_.on_status("paused: no space left on the host for the disk");
    disk_timer_ = timer(kDiskRetry, [this] { retry_disk(); });
}

void Vm::retry_disk() {
    disk_timer_.reset();
    if (snapshot_ && snapshot_->failure.empty()) { // its memory may be being read
        disk_timer_ = timer(kDiskRetry, [this] { retry_disk(); });
        return;
    }
    if (++no_space_retries_ % kLogEveryRetries == 0) {
        log::warning("the guest is still paused: no space left on the host for its disk");
    }
    // The events of a retry that fails may come before the answer to it, and after.
    const unsigned errors = no_space_errors_;
    auto sent = qmp_->execute("cont", [this, errors](const Result<void>& done) {
        if (!done) {
            finish(EndReason::disk, "no space left on the host for the disk, and the guest cannot "
                                    "go on: " +
                                        done.error().message);
            return;
        }
        disk_timer_ = timer(kDiskSettle, [this, errors] { check_disk(errors); });
    });
    if (!sent) {
        finish(EndReason::disk, "no space left on the host for the disk, and QEMU does not answer");
    }
}

void Vm::check_disk(unsigned errors_before) {
    disk_timer_.reset();
    if (no_space_errors_ != errors_before) {
        disk_timer_ = timer(kDiskRetry - kDiskSettle, [this] { retry_disk(); });
        return;
    }
    no_space_ = false;
    log::notice("the guest goes on: there is space for its disk again");
    handler_.on_status(stage_ == Stage::running ? "" : "booting the guest");
}

// ---- agent

void Vm::on_guest_frame(const wire::Frame& frame) {
    if (frame.channel == 0) {
        on_agent_control(frame);
    } else if (stage_ == Stage::running || snapshot_) { // or while one that failed is undone
        sessions_.on_guest_frame(frame);
    } else if (stage_ != Stage::ended) {
        finish(EndReason::agent_lost, "the agent spoke of a session before it was ready");
    }
}

void Vm::on_agent_control(const wire::Frame& frame) {
    switch (frame.type) {
    case wire::FrameType::hello:
        if (stage_ == Stage::vmm || stage_ == Stage::kernel) {
            if (const auto hello = wire::decode<wire::Hello>(frame.payload)) {
                on_hello(*hello);
                return;
            }
        }
        break;
    case wire::FrameType::ready:
        if (stage_ == Stage::running && std::exchange(thawing_, false)) {
            return;
        }
        if (stage_ == Stage::agent) {
            if (const auto ready = wire::decode<wire::Ready>(frame.payload)) {
                on_agent_ready(*ready);
                return;
            }
        }
        break;
    case wire::FrameType::failed:
        if (stage_ == Stage::agent) {
            const auto failure = wire::decode<wire::Failure>(frame.payload);
            finish(EndReason::agent_lost,
                   fmt::format("the guest could not be set up: {}",
                               failure ? printable(failure->message, 400) : "no reason given"));
            return;
        }
        break;
    case wire::FrameType::quiesced:
        if (thawing_ || (snapshot_ && !snapshot_->quiesced)) {
            on_quiesced();
            return;
        }
        break;
    case wire::FrameType::pong:
        return;
    default:
        break;
    }
    finish(EndReason::agent_lost,
           fmt::format("the agent broke the protocol: frame {:#04x} of {} bytes was not expected",
                       static_cast<unsigned>(frame.type), frame.payload.size()));
}

void Vm::on_hello(const wire::Hello& hello) {
    ready_.hello_us = now_us();
    if (ready_.vmm_us == 0) {
        ready_.vmm_us = ready_.hello_us; // QMP's greeting is still on its way
    }
    if (hello.oldest_version > wire::kProtocolVersion ||
        hello.version < wire::kOldestProtocolVersion) {
        finish(EndReason::agent_lost,
               fmt::format("the agent speaks protocol versions {} to {}, this workdir {} to {}",
                           hello.oldest_version, hello.version, wire::kOldestProtocolVersion,
                           wire::kProtocolVersion));
        return;
    }
    // The daemon takes at most 64 bytes of each.
    ready_.agent_version = printable(hello.agent_version, 48);
    ready_.kernel_release = printable(hello.kernel_release, 48);
    ready_.guest_agent_us =
        hello.now_ns > hello.agent_start_ns ? (hello.now_ns - hello.agent_start_ns) / 1000 : 0;
    stage_ = Stage::agent;
    if (launch_.probe) {
        become_ready();
        return;
    }
    handler_.on_phase(model::Phase::agent);
    handler_.on_status("setting up the guest");
    version_ = std::min<std::uint64_t>(hello.version, wire::kProtocolVersion);
    send_setup(version_);
}

void Vm::send_setup(std::uint64_t version) {
    wire::Setup setup{.version = version,
                      .root_device = "vda",
                      .random = std::string(64, '\0'),
                      .hostname = launch_.hostname,
                      .machine_id = launch_.machine_id,
                      .env = launch_.env};
    // Up to 256 bytes come whole once the host's pool is ready: getrandom(2).
    if (::getrandom(setup.random.data(), setup.random.size(), 0) !=
        static_cast<ssize_t>(setup.random.size())) {
        finish(EndReason::vmm_crash, "the host has no random bytes");
        return;
    }
    setup.realtime_ns = realtime_ns();
    const wire::Bytes encoded = wire::encode(setup);
    for (std::size_t at = 0; at < encoded.size(); at += wire::kMaxPayload) {
        const auto piece =
            std::span(encoded).subspan(at, std::min(encoded.size() - at, wire::kMaxPayload));
        const bool more = at + piece.size() < encoded.size();
        guest_->send({.type = wire::FrameType::setup,
                      .flag = more ? wire::kMore : std::uint8_t{0},
                      .payload = piece});
    }
    guest_->flush();
}

void Vm::on_agent_ready(const wire::Ready& ready) {
    ready_.guest_mount_us = ready.mount_ns / 1000;
    ready_.guest_identity_us = ready.identity_ns / 1000;
    ready_.root_bytes = ready.root_bytes;
    become_ready();
}

void Vm::become_ready() {
    ready_.ready_us = now_us();
    boot_timer_.reset();
    stage_ = Stage::running;
    facts_.was_ready = true;
    if (!launch_.probe && !stopping_) {
        sessions_.attach(*guest_);
    }
    if (snapshot_) { // which failed, and the guest has been thawed
        const std::string why = std::exchange(snapshot_, std::nullopt)->failure;
        handler_.on_status("");
        handler_.on_snapshot_failed(why);
        return;
    }
    handler_.on_status("");
    handler_.on_ready(ready_);
}

void Vm::on_guest_lost(const std::string& why, bool violation) {
    if (stage_ == Stage::ended) {
        return;
    }
    if (violation) {
        finish(EndReason::agent_lost, why);
    } else {
        finish_unless_exit_follows(EndReason::agent_lost, why);
    }
}

// ---- the end

void Vm::on_boot_timeout() {
    boot_timer_.reset();
    const std::string limit = shown(std::chrono::milliseconds(launch_.boot_timeout_ms));
    if (no_space_) {
        finish(EndReason::disk, fmt::format("no space left on the host for the disk, and the guest "
                                            "was not ready within {}",
                                            limit));
        return;
    }
    const char* const waiting_for = stage_ == Stage::vmm      ? "QEMU did not answer"
                                    : stage_ == Stage::kernel ? "its agent did not say hello"
                                                              : "its set-up did not finish";
    finish(EndReason::timeout,
           fmt::format("the guest was not ready within {}: {}", limit, waiting_for));
}

void Vm::stop(std::chrono::milliseconds deadline) {
    if (stage_ == Stage::ended) {
        return;
    }
    const auto due = std::chrono::steady_clock::now() + deadline;
    const bool first = !std::exchange(stopping_, true);
    if (!first && due >= stop_due_) {
        return;
    }
    stop_due_ = due;
    if (first) {
        facts_.stop = "stopped on request";
        handler_.on_status("stopping");
        boot_timer_.reset();
    }
    if (stage_ != Stage::running || launch_.probe || no_space_ || snapshot_ || deadline <= 0ms) {
        quit(); // nobody in there to ask
        return;
    }
    if (first) {
        guest_->send({.type = wire::FrameType::shutdown});
        guest_->flush();
    }
    stop_timer_ = timer(deadline, [this, deadline] {
        facts_.stop = fmt::format("stopped on request; the guest did not shut down within {}",
                                  shown(deadline));
        quit();
    });
}

void Vm::quit() {
    stop_timer_.reset();
    stop_due_ = {};
    if (stage_ == Stage::vmm || !qmp_->execute("quit")) {
        qemu_->kill();
        return;
    }
    stop_timer_ = timer(kQuitGrace, [this] { qemu_->kill(); });
}

void Vm::finish(EndReason reason, std::string detail) {
    if (stage_ == Stage::ended || facts_.chosen) {
        return;
    }
    facts_.chosen = model::End{.reason = reason, .detail = std::move(detail)};
    if (guest_) {
        guest_->close();
    }
    if (qemu_) {
        qemu_->kill();
    }
}

// A connection that ends is mostly the first sign of a QEMU that has ended, and that says more.
void Vm::finish_unless_exit_follows(EndReason reason, std::string detail) {
    if (facts_.channel_error.empty()) {
        facts_.channel_error = detail;
    }
    if (stage_ != Stage::ended && !grace_timer_) {
        grace_timer_ = timer(kExitGrace, [this, reason, detail] { finish(reason, detail); });
    }
}

void Vm::on_exit(const siginfo_t& info) {
    // The last words, in this order: ends of sessions, events, what the kernel printed.
    if (!facts_.chosen) {
        guest_->drain();
    }
    guest_->close();
    qmp_->drain();
    console_->drain();
    facts_.code = info.si_code;
    facts_.status = info.si_status;
    facts_.killed_by_shim = qemu_->killed();
    facts_.panic = console_->panic();
    facts_.last_stderr_line = qemu_->last_stderr_line();
    facts_.after = read_own_cgroup_events();
    stage_ = Stage::ended;
    snapshot_.reset();
    for (event::Timer* each : {&boot_timer_, &stop_timer_, &grace_timer_, &disk_timer_}) {
        each->reset();
    }
    control::Ended ended{
        .end = decide_end(facts_), .console_tail = console_->tail(), .was_ready = facts_.was_ready};
    ended.end.detail = printable(ended.end.detail, 500);
    handler_.on_ended(ended);
}

} // namespace wd::shim
