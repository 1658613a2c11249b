#pragma once
// Whether KVM really runs guests here. An openable /dev/kvm is no proof (nested virtualization that
// hangs a stock kernel is common), so with accel = "auto" the real guest kernel is booted once
// under KVM, in the same confined unit as any sandbox, until its agent says hello or a deadline
// passes. The answer is kept in /run/workdir/accel with the host's boot id.

#include "config/config.hpp"
#include "event/loop.hpp"
#include "pid1/units.hpp"
#include "sandbox/files.hpp"
#include "sandbox/machine.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace wd::sandbox {

struct AccelDecision {
    model::Accel accel = model::Accel::tcg;
    std::string detail; // why, for a person
};

class AccelProbe {
public:
    static constexpr const char* kUnit = "workdir-probe.service";

    AccelProbe(const event::Loop& loop, pid1::Units& units, const config::Config& config,
               const Paths& paths);

    // Calls back at once when the answer is known, else when the probe has ended; callers that come
    // meanwhile share one probe. Error: unsupported, when "kvm" is demanded and cannot be had.
    using Callback = std::function<void(Result<AccelDecision>)>;
    void decide(Callback callback);

    // The answer, where it is known already.
    const std::optional<AccelDecision>& known() const noexcept { return known_; }

private:
    void start_probe();
    Result<void> launch_probe();
    void on_probe_gone(const control::Ended& ended, bool guest_failed);
    void settle(AccelDecision decision, bool remember);
    std::optional<AccelDecision> read_cache() const;

    const event::Loop& loop_;
    pid1::Units& units_;
    const config::Config& config_;
    const Paths& paths_;
    std::optional<AccelDecision> known_;
    std::vector<Callback> waiting_;
    std::unique_ptr<Machine> machine_;
    int disturbed_ = 0; // probes in a row that were ended from outside
};

// The QEMU binary for this accelerator: the configured one; else, under KVM, Debian's small
// microvm-only build where it is installed.
std::string qemu_binary(const config::Config& config, model::Accel accel);

// Kernel and initramfs, opened. Error: start_failed with the setting to look at.
struct GuestFiles {
    Fd kernel;
    Fd initramfs;
};
Result<GuestFiles> open_guest_files(const config::Config& config);

} // namespace wd::sandbox
