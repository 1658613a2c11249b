#pragma once
// SpawnGuard: keeps a child from starting anything once it has become QEMU: no process, and no
// program but the one that the shim starts. The unit's own system call filter cannot say that, as
// the shim does start one. (QEMU's `-sandbox spawn=deny` does the same where it is compiled in;
// Debian's microvm build has no seccomp. And this holds from QEMU's first instruction on.)
//
// fork and exec fail with EPERM, threads work. How one execve is let through: the filter hands each
// to a supervisor (seccomp_unotify(2)), which is the shim; it lets the first continue and closes
// the listener, whereupon the kernel refuses all others with ENOSYS, for ever.

#include "util/fd.hpp"
#include "util/result.hpp"

#include <cstddef>
#include <vector>

namespace wd::shim {

class SpawnGuard {
public:
    static Result<SpawnGuard> create();

    // In the child, between fork and exec: system calls only. Gives the listener's descriptor
    // (close-on-exec) for the parent, or -1 with errno. The next execve waits for let_one_exec().
    int install() const noexcept;

    // In the parent: waits for the child's execve and lets it continue. Returns without error, too,
    // when the child ends before it.
    static Result<void> let_one_exec(Fd listener);

private:
    std::vector<std::byte> program_; // an array of struct sock_filter
};

} // namespace wd::shim
