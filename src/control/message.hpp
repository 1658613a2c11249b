#pragma once
// What workdird and a sandbox's workdir-shim say to each other, over one AF_UNIX SOCK_SEQPACKET
// connection: one JSON object a message, file descriptors beside it (SCM_RIGHTS).
//
// The listening socket is made by workdird in a folder only root can enter and is passed to the
// shim as fd 0 (StandardInputFileDescriptor=), so the shim needs no path, and a restarted workdird
// connects again by path. The shim talks to one connection at a time: a new one replaces the old.
// On every new connection the shim sends Hello and, as far as it got, Ready, Snapshotted and Ended
// again.
//
// To the daemon everything a shim says is untrusted: decode_event() bounds and checks all of it.

#include "model/spec.hpp"

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace wd::control {

inline constexpr int kVersion = 1;
inline constexpr std::size_t kMaxMessage = 160 * 1024; // a Launch with 128 KiB of environment fits
inline constexpr std::size_t kMaxFds = 12;
inline constexpr std::size_t kMaxConsoleTail = 2048;

// ---- daemon -> shim

// One layer of the root disk, bottom first. fds: console log (O_RDWR | O_APPEND), kernel,
// initramfs; for a restore memory and state of the snapshot (O_RDONLY); then one for each layer.
struct DiskLayer {
    bool qcow2 = false; // else raw
    bool read_only = true;
};

struct Launch {
    model::Accel accel = model::Accel::tcg;
    std::string qemu; // absolute path of the binary
    std::uint32_t cpus = 1;
    std::uint64_t memory_bytes = 0;
    bool restore = false;          // else the kernel boots
    std::vector<DiskLayer> layers; // empty for a probe
    std::string hostname;
    std::string machine_id;
    std::vector<std::string> env;
    std::uint64_t boot_timeout_ms = 0;
    bool probe = false; // Ready is sent at the agent's hello; no disk is mounted
};

// fds: session (SOCK_STREAM), request (a memfd holding an encoded wire::ExecRequest). What goes
// wrong is said on the session, in a wire `error` frame.
struct OpenSession {};

// End the guest in order, then the VMM; at the deadline the VMM is killed. Ended follows.
struct Shutdown {
    std::uint64_t deadline_ms = 10000;
};

// Of a guest that is ready and has no session: it is stopped, and written to two empty files, and
// the VMM ends. Snapshotted and Ended (stopped) follow; or SnapshotFailed, and it runs on; or Ended
// alone. fds: memory (O_RDWR), state (O_WRONLY).
struct Snapshot {
    bool compact =
        false; // worth some seconds to make it small: caches dropped, free pages left out
};

using Request = std::variant<Launch, OpenSession, Shutdown, Snapshot>;

// ---- shim -> daemon

enum class ShimState { waiting, launching, running, snapshotting, ended };

struct Hello {
    int version = kVersion;
    ShimState state = ShimState::waiting;
    std::uint32_t sessions = 0;
};

struct Progress { // the phase that has begun
    model::Phase phase = model::Phase::vmm;
};

// Points on the host's CLOCK_MONOTONIC, in microseconds, and spans the guest measured itself.
struct Ready {
    std::uint64_t launch_us = 0;      // Launch received
    std::uint64_t vmm_us = 0;         // QMP greeting received
    std::uint64_t hello_us = 0;       // the agent's hello received
    std::uint64_t ready_us = 0;       // the agent's ready received
    std::uint64_t guest_agent_us = 0; // from the agent's main to its hello
    std::uint64_t guest_mount_us = 0;
    std::uint64_t guest_identity_us = 0;
    std::uint64_t root_bytes = 0;
    std::string agent_version;
    std::string kernel_release;
};

struct Snapshotted { // both files are on the disk; the disk layers are complete at Ended
    std::uint64_t dirty_bytes = 0; // of memory, that no file had before
};

struct SnapshotFailed {
    std::string message;
};

struct Activity { // the first session has come, or the last has gone
    std::uint32_t sessions = 0;
};

struct Ended {
    model::End end;
    std::string console_tail; // last lines of the console, printable
    bool was_ready = false;   // false: the launch failed
};

using Event = std::variant<Hello, Progress, Ready, Activity, Snapshotted, SnapshotFailed, Ended>;

// A daemon that was away when the sandbox ended reads the reason from the unit's ExecMainStatus:
//
//     stopped 0, oom 41, pids 42, disk 43, timeout 44, policy 46, vmm_crash 47, host_pressure 48,
//     agent_lost 49
//
// and none for any other status (1: the shim itself could not start; a signal: the shim was
// killed). The numbers are clear of systemd's own (systemd.exec(5), 200 and up) and of sysexits.h.
int exit_status_of(model::EndReason reason);
std::optional<model::EndReason> reason_of_exit_status(int status);

std::string encode(const Request& request);
std::string encode(const Event& event);

// Error: invalid_argument with what was wrong.
Result<Request> decode_request(std::string_view text);
Result<Event> decode_event(std::string_view text);

} // namespace wd::control
