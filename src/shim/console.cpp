#include "shim/console.hpp"

#include "control/message.hpp"
#include "util/log.hpp"
#include "util/text.hpp"

#include <cerrno>

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::shim {
namespace {

// kernel/panic.c: pr_emerg("Kernel panic - not syncing: %s\n", buf)
constexpr std::string_view kPanic = "Kernel panic - not syncing: ";

} // namespace

Result<std::unique_ptr<Console>> Console::create(const event::Loop& loop, Fd socket, Fd log_file) {
    std::unique_ptr<Console> console(new Console(std::move(socket), std::move(log_file)));
    struct stat status {};
    if (console->log_ && ::fstat(console->log_.get(), &status) == 0) {
        console->log_size_ = static_cast<std::uint64_t>(status.st_size);
    }
    auto io = event::Io::create(loop, console->socket_.get(), EPOLLIN,
                                [self = console.get()](std::uint32_t) { (void)self->read_some(); });
    if (!io) {
        return fail(std::move(io).error());
    }
    console->io_ = std::move(*io);
    return console;
}

void Console::drain() {
    for (int i = 0; i < 64 && read_some(); ++i) {
    }
}

bool Console::read_some() {
    char buffer[16 * 1024];
    const ssize_t n = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (n <= 0) {
        io_.reset();
        return false;
    }
    take({buffer, static_cast<std::size_t>(n)});
    return true;
}

void Console::take(std::string_view text) {
    write_log(text);
    // What was kept before is at most half of what is searched here, so the cost stays linear.
    tail_ += text;
    if (panic_.empty()) {
        const std::size_t at = tail_.find(kPanic);
        const std::size_t end = at == std::string::npos ? at : tail_.find('\n', at);
        if (end != std::string::npos) {
            std::string_view what = std::string_view(tail_).substr(0, end);
            what.remove_prefix(at + kPanic.size());
            while (what.ends_with('\r')) {
                what.remove_suffix(1);
            }
            panic_ = printable(what, 200);
        }
    }
    if (tail_.size() > 2 * control::kMaxConsoleTail) {
        tail_.erase(0, tail_.size() - control::kMaxConsoleTail);
        tail_cut_ = true;
    }
}

std::string Console::tail() const {
    std::string text;
    for (const char c : tail_) {
        if (c != '\r') {
            text += c;
        }
    }
    const bool too_long = text.size() > control::kMaxConsoleTail;
    if (too_long || tail_cut_) {
        text.erase(0, too_long ? text.size() - control::kMaxConsoleTail : 0);
        // Whole lines, unless there is just one.
        if (const auto newline = text.find('\n'); newline + 1 < text.size()) {
            text.erase(0, newline + 1);
        }
    }
    while (text.ends_with('\n')) {
        text.pop_back();
    }
    return printable(text, 4 * control::kMaxConsoleTail);
}

void Console::write_log(std::string_view text) {
    if (!log_) {
        return;
    }
    if (log_size_ + text.size() > kMaxConsoleLog) {
        shorten_log();
    }
    const ssize_t n = ::write(log_.get(), text.data(), text.size());
    if (n > 0) {
        log_size_ += static_cast<std::uint64_t>(n);
    }
}

void Console::shorten_log() {
    // Appending is the only way to write here (O_APPEND), so the newest half is read, the file
    // emptied and the half written again. A follower sees the file become shorter and starts over.
    std::string kept(kKeptConsoleLog, '\0');
    const auto from =
        static_cast<off_t>(log_size_ > kKeptConsoleLog ? log_size_ - kKeptConsoleLog : 0);
    const ssize_t n = ::pread(log_.get(), kept.data(), kept.size(), from);
    kept.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    if (const auto newline = kept.find('\n'); newline != std::string::npos) {
        kept.erase(0, newline + 1);
    }
    log_size_ = 0;
    if (::ftruncate(log_.get(), 0) < 0 || !write_all(log_.get(), kept)) {
        log::warning("the console log cannot be written any more");
        log_.reset();
        return;
    }
    log_size_ = kept.size();
}

} // namespace wd::shim
