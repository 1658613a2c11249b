#include "vmm/tsc.hpp"

#include <algorithm>
#include <ctime>

#include <x86intrin.h>

namespace wd::vmm {
namespace {

constexpr long kSpanNs = 10'000'000;

std::int64_t monotonic_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

struct Sample {
    std::int64_t width_ns = INT64_MAX; // between the looks at the clock before and after
    std::int64_t ns = 0;
    std::uint64_t ticks = 0;
};

// Of several tries the one that was not interrupted.
Sample sample() {
    Sample best;
    for (int i = 0; i < 20; ++i) {
        const std::int64_t before = monotonic_ns();
        const std::uint64_t ticks = __rdtsc();
        const std::int64_t width = monotonic_ns() - before;
        if (width < best.width_ns) {
            best = {.width_ns = width, .ns = before + width / 2, .ticks = ticks};
        }
    }
    return best;
}

} // namespace

std::uint64_t measure_tsc_khz() {
    const Sample begin = sample();
    const timespec span{.tv_sec = 0, .tv_nsec = kSpanNs};
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &span, nullptr);
    const Sample end = sample();
    const double ns = static_cast<double>(std::max<std::int64_t>(1, end.ns - begin.ns));
    return static_cast<std::uint64_t>(static_cast<double>(end.ticks - begin.ticks) / ns * 1e6 +
                                      0.5);
}

} // namespace wd::vmm
