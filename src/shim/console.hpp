#pragma once
// Console: what the guest prints on its serial port. Written to the log file it was given, which is
// kept below 1 MiB, and the last lines kept in memory for an error message.

#include "event/sources.hpp"
#include "util/fd.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace wd::shim {

inline constexpr std::uint64_t kMaxConsoleLog = 1024 * 1024;
inline constexpr std::uint64_t kKeptConsoleLog = 512 * 1024;

class Console {
public:
    // `socket` is non-blocking; `log_file` is O_RDWR | O_APPEND, or empty.
    static Result<std::unique_ptr<Console>> create(const event::Loop& loop, Fd socket, Fd log_file);
    Console(const Console&) = delete;
    Console& operator=(const Console&) = delete;

    // Reads what is there without waiting for the loop.
    void drain();

    // The last lines, printable, at most 4 * control::kMaxConsoleTail bytes.
    std::string tail() const;
    // What the kernel said it panicked of, printable; empty when it did not.
    const std::string& panic() const noexcept { return panic_; }

private:
    Console(Fd socket, Fd log_file) : socket_(std::move(socket)), log_(std::move(log_file)) {}
    bool read_some(); // false: nothing more for now
    void take(std::string_view text);
    void write_log(std::string_view text);
    void shorten_log();

    Fd socket_;
    Fd log_;
    event::Io io_;
    std::uint64_t log_size_ = 0;
    std::string tail_;
    bool tail_cut_ = false;
    std::string panic_;
};

} // namespace wd::shim
