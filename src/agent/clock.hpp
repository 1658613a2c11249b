#pragma once
// Clocks of the guest, in nanoseconds.

#include <cstdint>
#include <ctime>

namespace wd::agent {

inline constexpr std::uint64_t kMillisecond = 1'000'000;
inline constexpr std::uint64_t kSecond = 1'000'000'000;
inline constexpr std::uint64_t kNever = UINT64_MAX;

inline std::uint64_t clock_ns(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * kSecond +
           static_cast<std::uint64_t>(now.tv_nsec);
}

// Since the guest's kernel started. All deadlines are on this clock.
inline std::uint64_t boot_ns() {
    return clock_ns(CLOCK_BOOTTIME);
}

} // namespace wd::agent
