#pragma once
// What Sandbox is doing; for its own files alone.

#include "sandbox/sandbox.hpp"

namespace wd::sandbox {

// One boot, from the request to ready or to the end of its unit.
struct Sandbox::Boot {
    PhaseCallback on_phase;
    Done done;
    bool fresh = false; // a create: undo all of it on failure
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
    BootQueue::Ticket ticket;
    BootQueue::Place place;
    std::optional<image::Image> image;
    std::optional<image::Golden> golden;        // to restore from; or
    bool waking = false;                        // from standby
    std::optional<image::SnapshotInfo> standby; // to wake from; else the kernel boots
    std::optional<DiskMaker> disk_maker;
    bool disk_ready = false;
    bool launched = false;
    std::optional<Error> failure; // why it ends, where we decided that
    event::Timer guard;
    std::uint64_t admitted_us = 0;
    std::uint64_t began_us = 0;          // a place in the queue, and the accelerator is known
    std::uint64_t unit_requested_us = 0; // files are there
};

// From the request to a folder that is complete, or to a guest that runs on.
struct Sandbox::Park {
    Park() = default;
    Park(const Park&) = delete;
    Park& operator=(const Park&) = delete;
    ~Park() { promised_bytes -= promised; }

    std::vector<Done> done;
    bool snapshotted = false;
    std::uint64_t dirty_bytes = 0;
    std::uint64_t asked_us = 0;
    event::Timer guard;

    // Of disk, as long as it is being parked; and of all that are.
    void promise(std::uint64_t bytes) {
        promised = bytes;
        promised_bytes += bytes;
    }
    std::uint64_t promised = 0;
    static inline std::uint64_t promised_bytes = 0;
};

} // namespace wd::sandbox
