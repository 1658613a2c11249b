#pragma once
// Frequency of the host's time stamp counter, which is the guest's too under TCG (QEMU hands the
// host's ticks on, cpu_get_host_ticks). KVM guests have kvm-clock and need none of this.

#include <cstdint>

namespace wd::vmm {

// Against CLOCK_MONOTONIC, so with the corrections of the host's NTP; within 1e-5. Blocks for 10
// ms.
std::uint64_t measure_tsc_khz();

} // namespace wd::vmm
