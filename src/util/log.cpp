#include "util/log.hpp"

#include <cstdlib>
#include <iterator>
#include <string>

#include <fmt/format.h>
// We pass no source location: the message says enough, and the macros of this header would add it.
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <sys/stat.h>
#include <sys/uio.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

namespace wd::log {
namespace {

Level g_max_level = std::getenv("WORKDIR_DEBUG") != nullptr ? Level::debug : Level::info;

// JOURNAL_STREAM says which file is the journal: systemd.exec(5). It may be inherited by processes
// whose stderr is another.
bool stderr_is_journal() {
    const char* const stream = std::getenv("JOURNAL_STREAM");
    struct stat info {};
    return stream != nullptr && ::fstat(STDERR_FILENO, &info) == 0 &&
           fmt::format("{}:{}", info.st_dev, info.st_ino) == stream;
}

// Of a shim: its unit's environment says so.
const std::string g_sandbox = [] {
    const char* const id = std::getenv("WORKDIR_SANDBOX");
    return std::string(id != nullptr ? id : "");
}();

const bool g_journal = stderr_is_journal();

} // namespace

void set_max_level(Level level) {
    g_max_level = level;
}

void write(Level level, std::string_view message, std::string_view sandbox_id) {
    if (level > g_max_level) {
        return;
    }
    if (sandbox_id.empty()) {
        sandbox_id = g_sandbox;
    }
    if (g_journal && sandbox_id.empty()) {
        // journald learns the unit of a line on stderr when it is connected; of a message of its
        // own protocol only by looking at the sender, which the last words of a process outlive.
        const std::string prefix = fmt::format("<{}>", static_cast<int>(level));
        std::string lines = prefix;
        for (const char c : message) {
            lines += c;
            if (c == '\n') {
                lines += prefix;
            }
        }
        fmt::print(stderr, "{}\n", lines);
        return;
    }
    if (!g_journal) {
        const std::string line = sandbox_id.empty() ? fmt::format("{}\n", message)
                                                    : fmt::format("{}: {}\n", sandbox_id, message);
        fmt::print(stderr, "{}", line);
        return;
    }
    std::string fields[] = {
        fmt::format("MESSAGE={}", message),
        fmt::format("PRIORITY={}", static_cast<int>(level)),
        fmt::format("WORKDIR_SANDBOX={}", sandbox_id),
    };
    struct iovec iov[std::size(fields)];
    for (std::size_t i = 0; i < std::size(fields); ++i) {
        iov[i] = {.iov_base = fields[i].data(), .iov_len = fields[i].size()};
    }
    (void)sd_journal_sendv(iov, std::size(fields));
}

} // namespace wd::log
