#include "agent/console.hpp"

#include <cstdarg>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

namespace wd::agent {

void console_init() {
    // Without a console the three descriptors are free, and a pipe must never land there.
    int fd = 0;
    while (fd >= 0 && fd <= 2) {
        fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    }
    if (fd > 2) {
        ::close(fd);
    }
    const int flags = ::fcntl(2, F_GETFL);
    if (flags >= 0) {
        ::fcntl(2, F_SETFL, flags | O_NONBLOCK);
    }
}

void console(const char* format, ...) {
    char line[512] = "workdir-agent: ";
    constexpr int kPrefix = 15;
    va_list args;
    va_start(args, format);
    int length = std::vsnprintf(line + kPrefix, sizeof line - kPrefix - 2, format, args);
    va_end(args);
    if (length < 0) {
        return;
    }
    length = length > static_cast<int>(sizeof line) - kPrefix - 3
                 ? static_cast<int>(sizeof line) - 3
                 : kPrefix + length;
    line[length++] = '\n'; // the tty adds the carriage return
    const ssize_t ignored = ::write(2, line, static_cast<std::size_t>(length));
    static_cast<void>(ignored);
}

} // namespace wd::agent
