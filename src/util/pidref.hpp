#pragma once
// PidRef: a process, by pid and pidfd, so that a signal never reaches a later process of that pid.

#include "util/fd.hpp"

#include <sys/types.h>

namespace wd {

class PidRef {
public:
    PidRef() noexcept = default;

    // pidfd_open(2), Linux 5.3. Error: not_found when there is no such process.
    static Result<PidRef> open(pid_t pid);

    pid_t pid() const noexcept { return pid_; }
    int fd() const noexcept { return fd_.get(); } // readable when the process has ended
    explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

    // pidfd_send_signal(2). Not an error when the process is gone already.
    Result<void> signal(int signo) const;

private:
    PidRef(pid_t pid, Fd fd) noexcept : pid_(pid), fd_(std::move(fd)) {}
    pid_t pid_ = 0;
    Fd fd_;
};

} // namespace wd
