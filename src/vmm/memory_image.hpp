#pragma once
// The guest's memory as a file, written while the VM is stopped and QEMU is still there.
//
// A VM that booted has its memory in a file of its own (a memfd, mapped shared). One that was
// restored maps a snapshot privately: the pages it wrote are QEMU's anonymous ones, which
// /proc/PID/pagemap tells from those of the file (bit 61: a page of a file; 62: swapped; 63:
// present; Documentation/admin-guide/mm/pagemap.rst) and /proc/PID/mem gives. Both need what
// ptrace needs: the same user, and an ancestor where Yama restricts it.

#include "util/result.hpp"

#include <cstdint>

#include <sys/types.h>

namespace wd::vmm {

struct MemoryFile {
    int fd = -1;        // borrowed; open for reading
    bool shared = true; // else `qemu` maps it privately
    pid_t qemu = -1;
    std::uint64_t bytes = 0;
};

struct MemoryImageStats {
    std::uint64_t base_bytes = 0;  // copied from the file, or shared with it (reflink)
    std::uint64_t dirty_bytes = 0; // written from QEMU's private pages
};

// Into `out`, empty and open for reading and writing; holes stay holes, and a page of zeros becomes
// one. Blocks for as long as the copy takes. Does not fsync.
Result<MemoryImageStats> write_memory_image(const MemoryFile& memory, int out);

} // namespace wd::vmm
