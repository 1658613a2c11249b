#include "cli/streams.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::cli {
namespace {

// A new open file description of a pipe or terminal, with O_NONBLOCK of its own. Empty where that
// is not possible: no /proc, a terminal of another user, a FIFO whose other end has gone.
Fd reopen(int fd, int access) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    Fd opened(::open(path.c_str(), access | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (opened && opened.get() <= STDERR_FILENO) {
        auto moved = opened.duplicate();
        return moved ? std::move(*moved) : Fd();
    }
    return opened;
}

bool ready(int fd, short events) {
    pollfd one{fd, events, 0};
    return ::poll(&one, 1, 0) > 0;
}

} // namespace

Sink::Sink(int fd) : fd_(fd) {
    struct stat info {};
    if (::fstat(fd, &info) < 0) {
        error_ = errno;
        return;
    }
    socket_ = S_ISSOCK(info.st_mode);
    regular_ = S_ISREG(info.st_mode) || S_ISBLK(info.st_mode);
    if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) {
        own_ = reopen(fd, O_WRONLY);
    }
}

Sink Sink::memory(std::size_t limit) {
    Sink sink;
    sink.memory_ = true;
    sink.limit_ = limit;
    return sink;
}

long Sink::write_some(std::span<const std::byte> data) {
    for (;;) {
        ssize_t n = 0;
        if (socket_) {
            n = ::send(fd_, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        } else if (own_ || regular_) {
            n = ::write(fd(), data.data(), data.size());
        } else {
            // poll(2) promises room for PIPE_BUF bytes of a pipe and no more.
            if (!ready(fd_, POLLOUT)) {
                return 0;
            }
            n = ::write(fd_, data.data(), std::min<std::size_t>(data.size(), PIPE_BUF));
        }
        if (n >= 0) {
            return n;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return 0;
        }
        if (errno != EINTR) {
            error_ = errno;
            return -1;
        }
    }
}

bool Sink::hung_up() const {
    return error_ == EIO && !memory_ && !regular_ && !socket_;
}

Sink::Write Sink::put(std::span<const std::byte> data) {
    if (memory_) {
        const std::size_t room = limit_ - std::min(limit_, collected_.size());
        const std::size_t taken = std::min(room, data.size());
        collected_.append(reinterpret_cast<const char*>(data.data()), taken);
        dropped_ = dropped_ || taken < data.size();
        written_ += data.size();
        return Write::done;
    }
    if (error_ != 0) {
        written_ += data.size();
        return Write::broken;
    }
    if (pending() == 0) {
        pending_.clear();
        start_ = 0;
        while (!data.empty()) {
            const long n = write_some(data);
            if (n < 0) {
                written_ += data.size();
                return Write::broken;
            }
            if (n == 0) {
                break;
            }
            written_ += static_cast<std::uint64_t>(n);
            data = data.subspan(static_cast<std::size_t>(n));
        }
    }
    pending_.insert(pending_.end(), data.begin(), data.end());
    return data.empty() ? Write::done : Write::again;
}

Sink::Write Sink::flush() {
    while (pending() > 0) {
        const long n = write_some(std::span(pending_).subspan(start_));
        if (n < 0) {
            written_ += pending();
            pending_.clear();
            start_ = 0;
            return Write::broken;
        }
        if (n == 0) {
            return Write::again;
        }
        written_ += static_cast<std::uint64_t>(n);
        start_ += static_cast<std::size_t>(n);
    }
    pending_.clear();
    start_ = 0;
    return Write::done;
}

Source::Source(int fd) : fd_(fd) {
    struct stat info {};
    if (fd < 0 || ::fstat(fd, &info) < 0) {
        fd_ = -1;
        return;
    }
    terminal_ = ::isatty(fd) == 1;
    socket_ = S_ISSOCK(info.st_mode);
    if (S_ISFIFO(info.st_mode) || terminal_) {
        own_ = reopen(fd, O_RDONLY);
    }
}

Source::Read Source::read(std::span<std::byte> out, std::size_t& got) {
    got = 0;
    if (fd_ < 0) {
        return Read::end;
    }
    // Reading in the background would stop the whole process by SIGTTIN.
    if (terminal_) {
        const pid_t foreground = ::tcgetpgrp(fd_);
        if (foreground >= 0 && foreground != ::getpgrp()) {
            return Read::background;
        }
    }
    for (;;) {
        const ssize_t n = socket_ ? ::recv(fd_, out.data(), out.size(), MSG_DONTWAIT)
                                  : ::read(fd(), out.data(), out.size());
        if (n > 0) {
            got = static_cast<std::size_t>(n);
            return Read::data;
        }
        if (n == 0 || (terminal_ && errno == EIO)) {
            pollfd one{fd(), POLLIN, 0};
            const bool hung_up =
                terminal_ && ::poll(&one, 1, 0) > 0 && (one.revents & POLLHUP) != 0;
            return hung_up ? Read::hung_up : Read::end; // else ^D
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return Read::again;
        }
        if (errno != EINTR) {
            return Read::end;
        }
    }
}

void fill_standard_fds() {
    for (;;) {
        const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            return;
        }
        if (fd > STDERR_FILENO) {
            ::close(fd);
            return;
        }
        // The lowest free slot: 0, 1 or 2 was closed. It is inherited by nobody: wd starts nothing.
    }
}

} // namespace wd::cli
