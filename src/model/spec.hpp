#pragma once
// What a sandbox is asked to be, what it may be, and how it ended.

#include "model/enums.hpp"
#include "util/result.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace wd::model {

struct SandboxSpec {
    std::string image;         // name
    std::string image_version; // filled in when the sandbox is admitted
    std::string name;          // may be empty
    std::uint32_t cpus = 1;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;
    std::chrono::milliseconds idle_timeout{0}; // without a session, until standby; 0: never
    std::map<std::string, std::string> labels;
    std::vector<std::string> env; // NAME=VALUE; values may be secrets: never shown
};

// Caps on one sandbox and on all of them, from the configuration.
struct Limits {
    std::uint32_t max_cpus = 0;
    std::uint64_t max_memory_bytes = 0;
    std::uint64_t max_disk_bytes = 0;
    std::uint32_t max_sandboxes = 0;          // in any state
    std::uint32_t max_sandboxes_per_user = 0; // in any state
    std::uint64_t memory_total_bytes = 0;     // of all live units together
    std::uint64_t disk_reserve_bytes = 0;     // stays free below /var/lib/workdir
};

// Memory of a unit beyond the guest's: QEMU's own heap and code, shim, page tables of the guest.
// Measured on QEMU 7.2: 45-70 MB resident with an idle guest; the rest is room for session buffers
// (at most 128 sessions of 0.75 MiB) and block-layer requests.
inline constexpr std::uint64_t kMemoryOverheadBytes = 192ull << 20;

// Least memory in which the guest kernel and the agent still run something useful.
inline constexpr std::uint64_t kMinMemoryBytes = 128ull << 20;

// Checks the spec by itself and against the caps on one sandbox. Each message names the value, the
// limit and the setting.
Result<void> check_spec(const SandboxSpec& spec, const Limits& limits);

struct Usage { // what is taken already, by everyone
    std::uint32_t sandboxes = 0;
    std::uint32_t sandboxes_of_user = 0;
    std::uint64_t live_memory_bytes = 0; // guest memory + overhead of all live units
    std::uint64_t disk_free_bytes = 0;
};

// Whether the host has room for one more. `new_sandbox` is false for a start of an existing one.
Result<void> admit(const SandboxSpec& spec, const Limits& limits, const Usage& usage,
                   bool new_sandbox);

// Milliseconds, each measured. `ready` is the whole span from admission to the agent's ready.
struct Timings {
    double queue = 0;
    double assign = 0;
    double unit = 0;
    double vmm = 0;
    double kernel = 0;
    double agent = 0;
    double ready = 0;
};

// How a sandbox ended, with limit and peak where the reason has one.
struct End {
    EndReason reason = EndReason::none;
    std::string detail; // one line for a person
    std::uint64_t limit = 0;
    std::uint64_t peak = 0;
};

} // namespace wd::model
