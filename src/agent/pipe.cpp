#include "agent/pipe.hpp"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace wd::agent {

Outcome<Pipe> Pipe::create(int size) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) < 0) {
        return failure_errno(errno, "make a pipe");
    }
    ::fcntl(fds[0], F_SETPIPE_SZ, size);
    return Pipe{Fd(fds[0]), Fd(fds[1])};
}

} // namespace wd::agent
