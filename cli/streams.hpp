#pragma once
// The local ends of an exec: wd's own stdin, stdout and stderr, which it shares with others (the
// terminal of a shell, a pipe to another process) and therefore never sets to O_NONBLOCK.

#include "util/fd.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace wd::cli {

// Where a stream of the command goes. Never blocks on a pipe, terminal or socket: those get an open
// file description of their own (through /proc/self/fd) or are written in pieces that poll(2) said
// fit (PIPE_BUF). A regular file is written directly.
class Sink {
public:
    enum class Write { done, again, broken };

    // Borrowed; must outlive the sink.
    explicit Sink(int fd);
    // Collects at most `limit` bytes in memory, drops and counts the rest.
    static Sink memory(std::size_t limit);
    Sink(Sink&&) noexcept = default;
    Sink& operator=(Sink&&) noexcept = default;
    Sink(const Sink&) = delete;
    Sink& operator=(const Sink&) = delete;
    ~Sink() = default;

    // Takes the bytes: writes what fits now and keeps the rest, in order.
    Write put(std::span<const std::byte> data);
    // Goes on with what was kept, after poll(2) said writable.
    Write flush();

    int fd() const { return own_ ? own_.get() : fd_; } // -1: memory
    std::size_t pending() const { return pending_.size() - start_; }
    std::uint64_t written() const { return written_; } // and dropped ones, from a broken sink
    // errno of the write that failed for good; 0 while all is well.
    int error() const { return error_; }
    // A terminal that has hung up (its window was closed), rather than a reader that left.
    bool hung_up() const;
    const std::string& collected() const { return collected_; }
    bool truncated() const { return dropped_; }

private:
    Sink() = default;
    // Bytes written, 0 for "not now", -1 for broken (error_ is set).
    long write_some(std::span<const std::byte> data);

    int fd_ = -1;
    Fd own_;              // non-blocking description of the same file
    bool socket_ = false; // send(2) with MSG_DONTWAIT
    bool regular_ = false;
    bool memory_ = false;
    std::size_t limit_ = 0;
    std::string collected_;
    bool dropped_ = false;
    int error_ = 0;
    std::vector<std::byte> pending_;
    std::size_t start_ = 0;
    std::uint64_t written_ = 0;
};

// Where the command's stdin comes from. Anything that cannot be read is an end of file: a closed
// descriptor, a directory. In the background of a terminal it waits instead of being stopped.
class Source {
public:
    explicit Source(int fd); // borrowed; -1: empty

    enum class Read { data, again, background, hung_up, end };
    // After poll(2) said readable: at most out.size() bytes, never blocking on a pipe or terminal.
    Read read(std::span<std::byte> out, std::size_t& got);

    int fd() const { return own_ ? own_.get() : fd_; }

private:
    int fd_;
    Fd own_;
    bool terminal_ = false;
    bool socket_ = false;
};

// Opens /dev/null in place of a closed stdin, stdout or stderr, so that nothing else lands there.
void fill_standard_fds();

} // namespace wd::cli
