#include "util/pidref.hpp"

#include <cerrno>

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace wd {

Result<PidRef> PidRef::open(pid_t pid) {
    Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!fd) {
        return fail_errno(errno, fmt::format("pidfd_open {}", pid),
                          errno == ESRCH ? ErrorCode::not_found : ErrorCode::internal);
    }
    return PidRef(pid, std::move(fd));
}

Result<void> PidRef::signal(int signo) const {
    if (::syscall(SYS_pidfd_send_signal, fd_.get(), signo, nullptr, 0) < 0 && errno != ESRCH) {
        return fail_errno(errno, fmt::format("signal process {}", pid_));
    }
    return {};
}

} // namespace wd
