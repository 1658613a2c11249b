#pragma once
// SnapshotWriter: a VM's memory and device state, into files. Made with the VM, as QEMU has to be
// started with what it needs for that: the file of its memory, and one to write its state to.

#include "event/worker.hpp"
#include "util/fd.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <sys/types.h>

namespace wd::shim {

class SnapshotWriter {
public:
    // `snapshot`: the memory file that QEMU is to map privately; without it, one is made for it to
    // share. `loop` must outlive the writer.
    static Result<std::unique_ptr<SnapshotWriter>> create(const event::Loop& loop, Fd snapshot,
                                                          std::uint64_t bytes);
    SnapshotWriter(const SnapshotWriter&) = delete;
    SnapshotWriter& operator=(const SnapshotWriter&) = delete;

    int memory_fd() const { return memory_.get(); }  // for QEMU to inherit
    int state_fd() const { return state_in_.get(); } // the same

    // Before QEMU writes its state: it cuts the file, but goes on at the offset of the last time.
    Result<void> rewind_state();

    struct Written {
        std::uint64_t dirty_bytes = 0;
    };
    // QEMU is stopped and has written its state. `done` comes from the loop, when both files are on
    // the disk; not after the writer has gone, whose end waits for a copy that is under way.
    void write(pid_t qemu, Fd memory, Fd state, std::function<void(Result<Written>)> done);

private:
    Result<std::string> read_state() const;
    SnapshotWriter(const event::Loop& loop, std::uint64_t bytes) : loop_(loop), bytes_(bytes) {}
    const event::Loop& loop_;
    std::uint64_t bytes_;
    bool shared_ = false;
    Fd memory_;
    Fd state_;    // a memfd
    Fd state_in_; // the same, open for writing alone, as QEMU wants it; shares its offset with QEMU
    std::unique_ptr<event::Worker> worker_; // at the first write
};

} // namespace wd::shim
