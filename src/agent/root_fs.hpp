#pragma once
// The guest's root file system: mounting, growing, switching to it, and leaving it in order.

#include "agent/outcome.hpp"

#include <cstdint>
#include <string>

namespace wd::agent {

// /dev, /proc and /sys of the initramfs.
Outcome<void> mount_early();

// Mounts the ext4 file system on /dev/<device> (waiting for it until `deadline`, boot_ns), grows
// it online to the size of the device, makes it the root with /dev, /proc and /sys moved along,
// and mounts what programs expect.
struct Root {
    std::uint64_t bytes = 0; // size of the file system
    bool grown = false;      // settle_root() is due
};
Outcome<Root> mount_root(const std::string& device, std::uint64_t deadline);

// Takes back the mount option that growing needs. Waits for the disk, as a remount syncs, so it is
// for a process of its own, off the way to ready.
void settle_root();

// For a snapshot: everything written to the disk; `compact`: caches and free memory given back to
// the host, too.
void quiesce_root(bool compact);

// Syncs and unmounts everything; the root becomes read-only. All processes must be gone.
void unmount_all();

} // namespace wd::agent
