#include "util/log.hpp"

#include <cstdlib>
#include <string>

#include <fmt/format.h>
// We pass no source location: the message says enough, and the macros of this header would add it.
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <sys/uio.h>
#include <systemd/sd-journal.h>

namespace wd::log {
namespace {

Level g_max_level = std::getenv("WORKDIR_DEBUG") != nullptr ? Level::debug : Level::info;

// systemd sets JOURNAL_STREAM when stderr is the journal: systemd.exec(5).
const bool g_journal = std::getenv("JOURNAL_STREAM") != nullptr;

} // namespace

void set_max_level(Level level) {
    g_max_level = level;
}

void write(Level level, std::string_view message, std::string_view sandbox_id) {
    if (level > g_max_level) {
        return;
    }
    if (!g_journal) {
        const std::string line = sandbox_id.empty() ? fmt::format("{}\n", message)
                                                    : fmt::format("{}: {}\n", sandbox_id, message);
        fmt::print(stderr, "{}", line);
        return;
    }
    std::string fields[3] = {
        fmt::format("MESSAGE={}", message),
        fmt::format("PRIORITY={}", static_cast<int>(level)),
        fmt::format("WORKDIR_SANDBOX={}", sandbox_id),
    };
    struct iovec iov[3];
    for (int i = 0; i < 3; ++i) {
        iov[i] = {.iov_base = fields[i].data(), .iov_len = fields[i].size()};
    }
    (void)sd_journal_sendv(iov, sandbox_id.empty() ? 2 : 3);
}

} // namespace wd::log
