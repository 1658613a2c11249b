#pragma once
// Pipe: both ends of a pipe(2), CLOEXEC.

#include "agent/outcome.hpp"
#include "util/fd.hpp"

namespace wd::agent {

struct Pipe {
    Fd read;
    Fd write;

    // Holds `size` bytes, where the kernel agrees (F_SETPIPE_SZ).
    static Outcome<Pipe> create(int size);
};

} // namespace wd::agent
