#pragma once
// Fd: the one owner of a file descriptor. Everything here opens with CLOEXEC.

#include "util/result.hpp"

#include <cerrno>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace wd {

class Fd {
public:
    Fd() noexcept = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) {
            reset(std::exchange(other.fd_, -1));
        }
        return *this;
    }
    Fd(const Fd&) = delete;
    Fd& operator=(const Fd&) = delete;
    ~Fd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    // Keeps errno. Inline, so the static agent can use Fd without linking this folder.
    void reset(int fd = -1) noexcept {
        if (fd_ >= 0) {
            const int saved = errno;
            ::close(fd_);
            errno = saved;
        }
        fd_ = fd;
    }

    // A CLOEXEC duplicate at 3 or above (F_DUPFD_CLOEXEC, see fcntl(2)), never on a stdio slot.
    Result<Fd> duplicate() const;

private:
    int fd_ = -1;
};

struct SocketPair {
    Fd first;
    Fd second;
};
// AF_UNIX pair, CLOEXEC. `type` as in socket(2), e.g. SOCK_STREAM | SOCK_NONBLOCK.
Result<SocketPair> socket_pair(int type);

Result<void> set_nonblocking(int fd);

// Writes all of it; blocks on a blocking fd. EINTR is retried.
Result<void> write_all(int fd, std::span<const std::byte> data);
Result<void> write_all(int fd, std::string_view data);

} // namespace wd
