#include "agent/files.hpp"

#include "util/fd.hpp"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::agent {

Outcome<std::string> read_small_file(const char* path, std::size_t limit) {
    const Fd file(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) < 0) {
        return failure_errno(errno, path);
    }
    if (!S_ISREG(status.st_mode)) {
        return failure(FailureKind::other, EINVAL, std::string(path) + " is not a regular file");
    }
    std::string text;
    char chunk[4096];
    for (;;) {
        const ssize_t n = ::read(file.get(), chunk, sizeof chunk);
        if (n == 0) {
            return text;
        }
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return failure_errno(errno, path);
        }
        text.append(chunk, static_cast<std::size_t>(n));
        if (text.size() > limit) {
            return failure(FailureKind::other, EFBIG, std::string(path) + " is too large");
        }
    }
}

Outcome<void> write_control(const char* path, std::string_view text) {
    return write_control_at(AT_FDCWD, path, text);
}

Outcome<void> write_control_at(int folder, const char* path, std::string_view text) {
    const Fd file(::openat(folder, path, O_WRONLY | O_CLOEXEC));
    if (!file || ::write(file.get(), text.data(), text.size()) < 0) {
        return failure_errno(errno, path);
    }
    return {};
}

namespace {

bool write_whole(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n <= 0) {
            return false;
        }
        text.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
}

bool write_in_place(const char* path, std::string_view text, unsigned mode) {
    const Fd file(::open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    return file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
           status.st_nlink == 1 && write_whole(file.get(), text) &&
           ::ftruncate(file.get(), static_cast<off_t>(text.size())) == 0 &&
           ((status.st_mode & 07777) == mode || ::fchmod(file.get(), mode) == 0);
}

} // namespace

Outcome<void> update_file(const char* path, std::string_view text, unsigned mode) {
    if (const auto now = read_small_file(path, 1024 * 1024); now && *now == text) {
        return {};
    }
    if (write_in_place(path, text, mode)) {
        return {};
    }
    const std::string temporary = std::string(path) + ".workdir-new";
    ::unlink(temporary.c_str());
    Fd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    const bool good = file && ::fchmod(file.get(), mode) == 0 && write_whole(file.get(), text);
    // ext4 writes the data out before such a rename (auto_da_alloc), so no fsync.
    if (!good || ::rename(temporary.c_str(), path) < 0) {
        auto failed = failure_errno(errno, std::string("write ") + path);
        ::unlink(temporary.c_str());
        return failed;
    }
    return {};
}

std::string unescape_mount(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto digit = [&](std::size_t at) {
            return at < text.size() && text[at] >= '0' && text[at] <= '7' ? text[at] - '0' : -1;
        };
        if (text[i] == '\\' && digit(i + 1) >= 0 && digit(i + 2) >= 0 && digit(i + 3) >= 0) {
            out += static_cast<char>(digit(i + 1) << 6 | digit(i + 2) << 3 | digit(i + 3));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

} // namespace wd::agent
