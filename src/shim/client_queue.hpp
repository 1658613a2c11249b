#pragma once
// ClientQueue: what waits to be written to a session's client, in the wire format of a session fd
// (channel 0). Data is kept as plain bytes for each stream and framed when it is written, so the
// queue costs what the credit allows, however small the frames were that the guest sent.
//
// The order within a stream is kept, and also between streams as long as the client keeps up.
// credit comes before data that waits; the last frame comes after everything.

#include "shim/byte_queue.hpp"
#include "wire/frame.hpp"

#include <array>
#include <optional>
#include <vector>

namespace wd::shim {

class ClientQueue {
public:
    void control(wire::FrameType type, std::span<const std::byte> payload, std::uint8_t flag = 0);
    void credit(std::uint32_t bytes); // of Stream::in
    // Writes a large payload to `fd` at once if nothing waits, without copying what fits.
    void data(int fd, wire::Stream stream, std::span<const std::byte> payload);
    void eof(wire::Stream stream);
    // The last frame of the session: nothing may be queued after it.
    void last(wire::FrameType type, std::span<const std::byte> payload);

    // Bytes of a stream that wait to be framed.
    std::size_t waiting(wire::Stream stream) const { return slot(stream).bytes.size(); }
    bool empty() const;
    void clear();

    enum class Flushed { all, blocked, broken };
    Flushed flush(int fd);

private:
    struct Slot {
        ByteQueue bytes;
        bool eof = false;
    };
    // The two streams towards the client.
    Slot& slot(wire::Stream stream) { return slots_[stream == wire::Stream::err ? 1 : 0]; }
    const Slot& slot(wire::Stream stream) const {
        return slots_[stream == wire::Stream::err ? 1 : 0];
    }
    static wire::Stream stream_of(std::size_t index) {
        return index == 1 ? wire::Stream::err : wire::Stream::out;
    }
    bool backlog() const;
    bool compose(); // puts the next frame into first_ and body_; false: there is none

    ByteQueue first_;      // framed bytes that go first
    std::size_t body_ = 0; // and then this many of slots_[body_slot_]
    std::size_t body_slot_ = 0;
    std::size_t turn_ = 0; // the slot that is next
    std::array<Slot, 2> slots_;
    std::uint32_t credit_ = 0;
    std::optional<std::vector<std::byte>> last_; // encoded
};

} // namespace wd::shim
