// /proc/self/cgroup and mountinfo are the kernel's, but names in them are anybody's.

#include "shim/cgroup_events.hpp"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const std::size_t half = text.find('\0');
    const std::string_view rest = half == text.npos ? text : text.substr(half + 1);
    (void)wd::shim::find_cgroup(text.substr(0, half), rest);
    (void)wd::shim::flat_value(text.substr(0, half), rest);
    return 0;
}
