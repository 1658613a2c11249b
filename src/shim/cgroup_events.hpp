#pragma once
// What the kernel counted against this process's cgroup: the unit's limits, and whether they were
// hit. Works with the unified hierarchy and with v1 controllers (also mixed, per controller).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace wd::shim {

struct CgroupEvents {
    std::uint64_t oom_kills = 0;    // processes of the cgroup killed for want of memory
    std::uint64_t limit_hits = 0;   // times its own memory limit made an allocation fail
    std::uint64_t pids_refused = 0; // forks refused by its own pids limit
    std::uint64_t memory_limit = 0; // bytes; 0: none, or not known
    std::uint64_t memory_peak = 0;  // bytes; 0: not known
    std::uint64_t pids_limit = 0;   // 0: none, or not known
};

struct CgroupFolders {
    std::filesystem::path memory; // empty: no such controller here
    bool memory_v2 = false;
    std::filesystem::path pids;
};

// Pure: from the text of /proc/self/cgroup and /proc/self/mountinfo (proc(5), cgroups(7)).
CgroupFolders find_cgroup(std::string_view cgroup, std::string_view mountinfo);

// Counters of a flat-keyed cgroup file ("name value" a line); nullopt when there is no such name.
std::optional<std::uint64_t> flat_value(std::string_view text, std::string_view name);

// Reads a few small files of the kernel's. What cannot be read is 0.
CgroupEvents read_cgroup_events(const CgroupFolders& folders);
CgroupEvents read_own_cgroup_events();

} // namespace wd::shim
