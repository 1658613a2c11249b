#pragma once
// The words of the product: states, reasons, boot paths, phases. Each has one spelling, used on
// D-Bus, in JSON, in the database and in messages; the tables in enums.cpp are total (tested).

#include <optional>
#include <string_view>

namespace wd::model {

// creating -> running, running -> stopping -> stopped -> starting -> running, running -> parking ->
// standby -> starting -> running, any -> deleting, any -> failed.
enum class State {
    creating,
    running,
    stopping,
    stopped,
    starting, // from stopped or failed; or from standby
    parking,  // to standby; its guest is being written
    standby,  // memory, processes and disk are files; a call wakes it
    deleting,
    failed
};

// Why a sandbox is not running any more; the same in every tier.
enum class EndReason {
    none,
    deleted,
    stopped,       // asked for: wd stop, systemctl stop, shutdown in the guest
    oom,           // the unit exceeded its MemoryMax
    pids,          // the unit exceeded its TasksMax
    disk,          // no space behind its disk
    timeout,       // a deadline of ours passed, e.g. the guest did not come up
    signal,        // the shim was killed
    policy,        // refused by policy while running
    vmm_crash,     // the VMM ended by itself
    host_pressure, // the host ended it to save itself
    agent_lost,    // the agent broke the protocol or its channel closed
};

// How a sandbox came to run: its kernel booted; it was restored from the golden snapshot of its
// image and shape; or it came back from standby.
enum class BootPath { cold_boot, snapshot_restore, wake };

enum class Accel { kvm, tcg };
enum class AccelChoice { automatic, kvm, tcg }; // "auto" in the configuration

// What a create is doing now, in this order.
enum class Phase { queue, assign, unit, vmm, kernel, agent, ready };

template <class Enum>
std::string_view to_string(Enum value);
template <class Enum>
std::optional<Enum> from_string(std::string_view text);

// A live sandbox has, or is about to have, a unit.
bool is_live(State state);

} // namespace wd::model
