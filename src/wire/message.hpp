#pragma once
// Payloads of the frames that are more than bytes: fields of (u8 tag, u32 length, value), integers
// as 8 bytes little-endian, a list as its tag repeated. Unknown tags are skipped, so a field can be
// added within a protocol version; a known tag with a value of wrong size makes decode() fail.

#include "wire/frame.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace wd::wire {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

// agent -> shim, the first frame after the guest has started (before the root disk is mounted, so a
// machine without a disk says hello too: the KVM probe uses that).
struct Hello {
    std::uint64_t oldest_version = kOldestProtocolVersion;
    std::uint64_t version = kProtocolVersion;
    std::string agent_version;
    std::string kernel_release;       // uname -r
    std::uint64_t agent_start_ns = 0; // guest CLOCK_BOOTTIME when the agent's main began
    std::uint64_t now_ns = 0;         // guest CLOCK_BOOTTIME when hello was sent
};

// shim -> agent: all of it is done before ready is sent, and before any user process runs.
struct Setup {
    std::uint64_t version = kProtocolVersion; // the one to speak
    std::string root_device;                  // "vda"; ext4, grown to the size of the device
    std::uint64_t realtime_ns = 0;            // host CLOCK_REALTIME when this was sent
    std::string random;                       // 64 host bytes for RNDADDENTROPY
    std::string hostname;
    std::string machine_id;       // 32 hex digits
    std::vector<std::string> env; // NAME=VALUE, for every process
};

// agent -> shim
struct Ready {
    std::uint64_t mount_ns = 0;    // mount and grow the root file system
    std::uint64_t identity_ns = 0; // clock, random pool, names
    std::uint64_t root_bytes = 0;  // size of the root file system
};

// Limits of Linux itself: MAX_ARG_STRLEN is 32 pages (include/uapi/linux/binfmts.h), and the total
// may be a quarter of the stack limit of 8 MiB (execve(2)); half of that leaves room for both.
inline constexpr std::size_t kMaxArgument = 128 * 1024 - 1;
inline constexpr std::size_t kMaxExecRequest = 1024 * 1024; // and of a Setup

struct ExecRequest {
    std::vector<std::string> argv; // argv[0] is looked up in PATH of the final environment
    std::vector<std::string> env;  // NAME=VALUE; wins over Setup's
    std::string cwd;               // empty: /workspace where it exists, else /
    std::string user;              // empty: root; a name or a number, looked up in the guest
    std::uint64_t timeout_ms = 0;  // 0: none. The agent ends the whole tree: TERM, then KILL
};

struct Opened {
    std::uint64_t pid = 0; // in the guest
};

// What could not be done. `kind` decides the exit status of `wd exec`.
struct Failure {
    enum class Kind : std::uint64_t {
        other = 0,          // 125
        not_executable = 1, // 126
        not_found = 2,      // 127
        unreachable = 3,    // shim: the guest or its channel is gone (125)
        violation = 4,      // shim: the client broke the protocol (125)
        limit = 5,          // shim: too many sessions (125)
    };
    Kind kind = Kind::other;
    std::uint64_t errnum = 0;
    std::string message;
};

struct Exit {
    enum class Kind : std::uint64_t { exited = 0, signaled = 1, timeout = 2 };
    Kind kind = Kind::exited;
    std::uint64_t value = 0;      // exit status, or signal number
    std::uint64_t cpu_us = 0;     // user + system of the exec's cgroup in the guest
    std::uint64_t peak_bytes = 0; // memory.peak of that cgroup, 0 where the guest kernel lacks it
};

Bytes encode(const Hello& message);
Bytes encode(const Setup& message);
Bytes encode(const Ready& message);
Bytes encode(const ExecRequest& message);
Bytes encode(const Opened& message);
Bytes encode(const Failure& message);
Bytes encode(const Exit& message);

// nullopt: malformed.
template <class Message>
std::optional<Message> decode(View payload);
template <>
std::optional<Hello> decode<Hello>(View payload);
template <>
std::optional<Setup> decode<Setup>(View payload);
template <>
std::optional<Ready> decode<Ready>(View payload);
template <>
std::optional<ExecRequest> decode<ExecRequest>(View payload);
template <>
std::optional<Opened> decode<Opened>(View payload);
template <>
std::optional<Failure> decode<Failure>(View payload);
template <>
std::optional<Exit> decode<Exit>(View payload);

} // namespace wd::wire
