#pragma once
// Frames: what runs over the guest channel (shim <-> agent, one virtio-serial port) and over a
// session fd (client <-> shim, one end of a socketpair that a D-Bus call returned).
//
// A frame is a 12-byte little-endian header and a payload of at most kMaxPayload bytes:
//
//     u32 channel   0 = control on the guest channel; always 0 on a session fd
//     u32 length    of the payload
//     u8  type      FrameType
//     u8  flag      Stream for data, eof and credit; kMore for open
//     u16 zero      must be 0
//
// Credit. Data of a stream may be sent only against credit that the receiver granted for that
// channel and stream (FrameType::credit), so a reader that stalls stalls only its own stream and
// nothing is queued without bound. No stream has credit at the start. Never more than kWindow bytes
// may be outstanding (granted and not yet used): granting more, or sending more than was granted,
// is a violation, on which the other side ends the session and nothing else.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace wd::wire {

inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::uint16_t kOldestProtocolVersion = 1; // the previous one, once there is one

inline constexpr std::size_t kHeaderSize = 12;
inline constexpr std::size_t kMaxPayload = 64 * 1024;
// Linux's virtio_console hands at most 32 KiB of one write(2) to the host, so a data frame that
// fills just that needs one write (drivers/char/virtio_console.c, port_fops_write).
inline constexpr std::size_t kDataChunk = 32 * 1024 - kHeaderSize;
// Larger costs memory in the shim (2 outputs a session); smaller, and a stream waits for grants:
// under TCG 256 KiB carried a fifth less.
inline constexpr std::uint32_t kWindow = 512 * 1024;

enum class FrameType : std::uint8_t {
    // Channel 0, between shim and agent.
    hello = 0x01,    // agent, first frame: Hello
    setup = 0x02,    // shim: a piece of Setup; flag kMore = not the last
    ready = 0x03,    // agent: Ready, after all of Setup has been done
    failed = 0x04,   // agent: Failure; Setup failed, no process will be started
    shutdown = 0x05, // shim: end all processes, sync, unmount, stop the machine
    ping = 0x06,     // shim: any payload
    pong = 0x07,     // agent: the same payload
    quiesce = 0x08,  // shim: a snapshot is due: processes frozen, everything to the disk; with flag
                     // kCompact also unneeded memory given back
    quiesced = 0x09, // agent: done, and nothing more is written or run until the next Setup

    // A channel other than 0 on the guest channel; channel 0 on a session fd.
    open = 0x10,        // to the agent: a piece of an ExecRequest; flag kMore = not the last
    opened = 0x11,      // from the agent: Opened
    open_failed = 0x12, // from the agent: Failure; the channel is gone
    data = 0x13,        // flag Stream; against credit
    eof = 0x14,         // flag Stream; after the last data. From the agent also for stdin, once:
                        // nobody reads it any more
    credit = 0x15,      // flag Stream; u32 bytes granted
    signal = 0x16,      // to the agent: u8 signal number, for the process group
    exit = 0x17,        // from the agent: Exit; the channel is gone
    detach = 0x18,      // to the agent: the client leaves, the process goes on, output is dropped
    close = 0x19,       // to the agent: the client is gone, end the process
    error = 0x1a,       // shim to client: Failure of workdir itself; the session is over
};

enum class Stream : std::uint8_t { in = 0, out = 1, err = 2 };
inline constexpr std::uint8_t kMore = 1;
inline constexpr std::uint8_t kCompact = 1;

struct Frame {
    std::uint32_t channel = 0;
    FrameType type{};
    std::uint8_t flag = 0;
    std::span<const std::byte> payload; // borrowed
};

// Cuts a byte stream into frames. Frames are handed out as views into its buffer, valid until the
// next call of feed() or prepare(). Memory: at most one frame and what one feed() brought.
class FrameReader {
public:
    enum class Violation { none, unknown_type, oversized, bad_header };

    void feed(std::span<const std::byte> data);

    // The same without a copy: room for at least `size` bytes to read(2) into, and then how many of
    // them came. Invalidates the frames handed out.
    std::span<std::byte> prepare(std::size_t size);
    void commit(std::size_t size);

    // The next whole frame; nullopt when more bytes are needed or the stream is broken.
    std::optional<Frame> next();

    // Once broken, always broken: the byte stream cannot be trusted again.
    Violation violation() const noexcept { return violation_; }
    std::size_t buffered() const noexcept { return end_ - start_; }

private:
    // Not a vector: growing one would write to pages that nothing has been read into.
    std::unique_ptr<std::byte[]> buffer_;
    std::size_t capacity_ = 0;
    std::size_t start_ = 0;
    std::size_t end_ = 0;
    Violation violation_ = Violation::none;
};

// Writes header and payload behind what `out` holds. Precondition: payload.size() <= kMaxPayload.
void append_frame(std::vector<std::byte>& out, const Frame& frame);
void put_header(std::byte* out, std::uint32_t channel, FrameType type, std::uint8_t flag,
                std::uint32_t length); // kHeaderSize bytes

void append_credit(std::vector<std::byte>& out, std::uint32_t channel, Stream stream,
                   std::uint32_t bytes);

// The u32 of a credit frame; nullopt when malformed or zero.
std::optional<std::uint32_t> parse_credit(std::span<const std::byte> payload);
// The stream of a data, eof or credit frame.
std::optional<Stream> parse_stream(std::uint8_t flag);

// One direction of one stream, as seen by whoever must not trust the other side.
class CreditAccount {
public:
    // False: the grant would put more than kWindow outstanding.
    [[nodiscard]] bool grant(std::uint32_t bytes) noexcept;
    // False: more than was granted.
    [[nodiscard]] bool use(std::size_t bytes) noexcept;
    std::uint32_t available() const noexcept { return available_; }

private:
    std::uint32_t available_ = 0;
};

std::string_view to_string(FrameReader::Violation violation);

} // namespace wd::wire
