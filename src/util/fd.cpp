#include "util/fd.hpp"

#include <cerrno>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace wd {

Result<Fd> Fd::duplicate() const {
    Fd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 3));
    if (!copy) {
        return fail_errno(errno, "duplicate a file descriptor");
    }
    return copy;
}

Result<SocketPair> socket_pair(int type) {
    int fds[2];
    if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) < 0) {
        return fail_errno(errno, "socketpair");
    }
    return SocketPair{Fd(fds[0]), Fd(fds[1])};
}

Result<void> set_nonblocking(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        return fail_errno(errno, "set O_NONBLOCK");
    }
    return {};
}

Result<void> write_all(int fd, std::span<const std::byte> data) {
    while (!data.empty()) {
        const ssize_t n = ::write(fd, data.data(), data.size());
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return fail_errno(errno, "write",
                              errno == ENOSPC ? ErrorCode::disk_full : ErrorCode::internal);
        }
        data = data.subspan(static_cast<std::size_t>(n));
    }
    return {};
}

Result<void> write_all(int fd, std::string_view data) {
    return write_all(fd, std::as_bytes(std::span(data.data(), data.size())));
}

} // namespace wd
