#pragma once
// GuestChannel: frames to and from the agent, over the stream socket that is the host's side of the
// virtio-serial port. Never blocks.
//
// What is sent and does not fit into the socket is queued. The queue has no hard end, but callers
// that can wait do so while congested() is true, and what others may add is bounded by the number
// of sessions: so is the queue.

#include "event/sources.hpp"
#include "shim/byte_queue.hpp"
#include "util/fd.hpp"
#include "wire/frame.hpp"

#include <memory>
#include <string>

namespace wd::shim {

class GuestChannel {
public:
    // Calls come from the loop, and from drain(). None of them may destroy the channel.
    class Handler {
    public:
        virtual ~Handler() = default;
        virtual void on_guest_frame(const wire::Frame& frame) = 0;
        virtual void on_guest_batch() = 0;   // all frames of one read have been handed out
        virtual void on_guest_drained() = 0; // no longer congested
        // The channel is over: end of file, or a broken byte stream (violation).
        virtual void on_guest_lost(const std::string& why, bool violation) = 0;
    };

    static Result<std::unique_ptr<GuestChannel>> create(const event::Loop& loop, Fd socket,
                                                        Handler& handler);
    GuestChannel(const GuestChannel&) = delete;
    GuestChannel& operator=(const GuestChannel&) = delete;

    // Small frames wait for flush(), or for the loop's next iteration; a large one goes at once,
    // without a copy of what the socket takes of it.
    void send(const wire::Frame& frame);
    void flush();
    bool congested() const noexcept { return congested_; }

    // Reads what is there without waiting for the loop: for the last words of a guest.
    void drain();
    // Nothing is read or written any more.
    void close();

private:
    GuestChannel(const event::Loop& loop, Fd socket, Handler& handler)
        : loop_(loop), socket_(std::move(socket)), handler_(handler) {}
    void on_io(std::uint32_t events);
    bool read_some(); // false: nothing more for now
    void lose(const std::string& why, bool violation);
    void update_events();
    void note_queue();
    std::size_t transmit(std::span<const std::byte> header, std::span<const std::byte> payload);

    const event::Loop& loop_;
    Fd socket_;
    Handler& handler_;
    event::Io io_;
    event::Defer flush_later_;
    wire::FrameReader reader_;
    ByteQueue queue_;
    std::uint32_t watched_ = EPOLLIN;
    bool congested_ = false;
    bool lost_ = false;
};

} // namespace wd::shim
