#include "sandbox/accel_probe.hpp"

#include "sandbox/unit_spec.hpp"
#include "util/file.hpp"
#include "util/log.hpp"
#include "util/size.hpp"
#include "util/text.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::sandbox {
namespace {

constexpr const char* kKvm = "/dev/kvm";
constexpr const char* kQemu = "/usr/bin/qemu-system-x86_64";
constexpr const char* kQemuMicrovm = "/usr/bin/qemu-system-x86_64-microvm";
constexpr int kMostAttempts = 3;
constexpr std::uint64_t kProbeMemory = 256 * kMiB;

// Empty when the device is there. workdird itself may not open it: its unit may have started before
// the kvm module was loaded, and a device that does not exist cannot be allowed to a unit. (Nor may
// it ask access(2), which goes by the unit's rules for devices too.)
std::string kvm_problem() {
    struct stat info {};
    return ::stat(kKvm, &info) == 0 ? std::string()
                                    : fmt::format("{}: {}", kKvm, std::strerror(errno));
}

std::string boot_id() {
    auto text = read_file("/proc/sys/kernel/random/boot_id", 64);
    return text ? text->substr(0, 36) : std::string();
}

Result<Fd> open_guest_file(const std::string& path, std::string_view what,
                           std::string_view setting) {
    auto fd = open_file(path, O_RDONLY);
    if (!fd) {
        return fail(ErrorCode::start_failed,
                    fmt::format("the guest's {} cannot be read: {}; install the package "
                                "workdir-guest, or correct {} in workdird.toml",
                                what, fd.error().message, setting));
    }
    return fd;
}

} // namespace

std::string qemu_binary(const config::Config& config, model::Accel accel) {
    if (!config.vmm.qemu.empty()) {
        return config.vmm.qemu;
    }
    return accel == model::Accel::kvm && ::access(kQemuMicrovm, X_OK) == 0 ? kQemuMicrovm : kQemu;
}

Result<GuestFiles> open_guest_files(const config::Config& config) {
    auto kernel = open_guest_file(config.guest.kernel, "kernel", "guest.kernel");
    if (!kernel) {
        return fail(std::move(kernel).error());
    }
    auto initramfs = open_guest_file(config.guest.initramfs, "initramfs", "guest.initramfs");
    if (!initramfs) {
        return fail(std::move(initramfs).error());
    }
    return GuestFiles{std::move(*kernel), std::move(*initramfs)};
}

AccelProbe::AccelProbe(const event::Loop& loop, pid1::Units& units, const config::Config& config,
                       const Paths& paths)
    : loop_(loop), units_(units), config_(config), paths_(paths) {}

void AccelProbe::decide(Callback callback) {
    using Choice = model::AccelChoice;
    if (config_.vmm.accel == Choice::tcg) {
        known_ = {model::Accel::tcg, "vmm.accel = \"tcg\" in workdird.toml"};
    } else if (config_.vmm.accel == Choice::kvm) {
        if (const std::string problem = kvm_problem(); !problem.empty()) {
            callback(fail(ErrorCode::unsupported,
                          fmt::format("{}; vmm.accel = \"kvm\" in workdird.toml demands it. Enable "
                                      "virtualization in the firmware and load kvm_intel or "
                                      "kvm_amd, or set vmm.accel = \"auto\"",
                                      problem)));
            return;
        }
        known_ = {model::Accel::kvm, "vmm.accel = \"kvm\" in workdird.toml"};
    } else if (!known_) {
        known_ = read_cache();
    }
    if (known_) {
        callback(*known_);
        return;
    }
    waiting_.push_back(std::move(callback));
    if (waiting_.size() == 1) {
        start_probe();
    }
}

void AccelProbe::start_probe() {
    if (const std::string problem = kvm_problem(); !problem.empty()) {
        // Cheap to find out again, and it may be mended while the host runs: not remembered.
        settle({model::Accel::tcg, problem}, false);
        return;
    }
    log::info("probing KVM: booting the guest kernel once");
    if (auto done = launch_probe(); !done) {
        machine_.reset();
        settle({model::Accel::tcg, "the KVM probe could not start: " + done.error().message},
               false);
    }
}

Result<void> AccelProbe::launch_probe() {
    auto files = open_guest_files(config_);
    if (!files) {
        return fail(std::move(files).error());
    }
    auto console = open_file("/dev/null", O_RDWR | O_APPEND);
    if (!console) {
        return fail(std::move(console).error());
    }
    machine_ = std::make_unique<Machine>(
        loop_, units_, kUnit, paths_.control_socket("probe"),
        Machine::Listener{.on_phase = [](model::Phase) {},
                          .on_ready =
                              [this](const control::Ready& ready) {
                                  machine_->kill({.reason = model::EndReason::stopped});
                                  settle(
                                      {model::Accel::kvm,
                                       fmt::format("the guest kernel {} booted under KVM in {} ms",
                                                   printable(ready.kernel_release, 64),
                                                   (ready.hello_us - ready.launch_us) / 1000)},
                                      true);
                              },
                          .on_gone =
                              [this](const control::Ended& ended) {
                                  const bool failed = machine_->ended_by_itself();
                                  machine_.reset();
                                  on_probe_gone(ended, failed);
                              }});
    const VmmUnit unit{.id = "probe",
                       .description = "Workdir KVM probe",
                       .accel = model::Accel::kvm,
                       .cpus = 1,
                       .memory_bytes = kProbeMemory,
                       .tasks_max = config_.tasks_max};
    auto started = machine_->start([&](int socket) {
        VmmUnit with_socket = unit;
        with_socket.control_socket = socket;
        return vmm_unit_properties(with_socket);
    });
    if (!started) {
        return started;
    }
    return machine_->launch(
        {.accel = model::Accel::kvm,
         .qemu = qemu_binary(config_, model::Accel::kvm),
         .cpus = 1,
         .memory_bytes = kProbeMemory,
         .hostname = "probe",
         .boot_timeout_ms = static_cast<std::uint64_t>(config_.vmm.kvm_probe_timeout.count()),
         .probe = true},
        {console->get(), files->kernel.get(), files->initramfs.get()});
}

// What ended the probe from outside (an administrator, the probe of an earlier workdird that had
// the name) says nothing of KVM, and must not make this host a TCG host until its next boot.
void AccelProbe::on_probe_gone(const control::Ended& ended, bool guest_failed) {
    if (known_) {
        return;
    }
    if (!guest_failed && ++disturbed_ < kMostAttempts) {
        start_probe();
        return;
    }
    disturbed_ = 0;
    settle({model::Accel::tcg,
            fmt::format("{} is there, but the guest kernel did not boot under it: {}", kKvm,
                        ended.end.detail)},
           guest_failed);
}

void AccelProbe::settle(AccelDecision decision, bool remember) {
    if (known_) {
        return; // the probe's machine has gone after its answer
    }
    log::notice(
        fmt::format("accelerator: {} ({})", model::to_string(decision.accel), decision.detail));
    known_ = decision;
    if (remember) {
        const auto done = write_file_atomically(
            paths_.accel_cache(), fmt::format("{}\n{}\n{}\n", boot_id(),
                                              model::to_string(decision.accel), decision.detail));
        if (!done) {
            log::warning(fmt::format("cannot remember it: {}", done.error().message));
        }
    }
    const auto waiting = std::exchange(waiting_, {});
    for (const Callback& callback : waiting) {
        callback(decision);
    }
    if (!remember) {
        known_.reset();
    }
}

std::optional<AccelDecision> AccelProbe::read_cache() const {
    auto text = read_file(paths_.accel_cache(), 4096);
    if (!text) {
        return std::nullopt;
    }
    const auto first = text->find('\n');
    const auto second = text->find('\n', first + 1);
    if (first == std::string::npos || second == std::string::npos ||
        text->substr(0, first) != boot_id()) {
        return std::nullopt;
    }
    const auto accel =
        model::from_string<model::Accel>(text->substr(first + 1, second - first - 1));
    if (!accel) {
        return std::nullopt;
    }
    std::string detail = text->substr(second + 1);
    detail.erase(detail.find_last_not_of('\n') + 1);
    return AccelDecision{*accel, std::move(detail)};
}

} // namespace wd::sandbox
