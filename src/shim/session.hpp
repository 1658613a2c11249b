#pragma once
// Session: one client's stream, tied to one channel of the agent. Relays frames both ways and holds
// both sides to the protocol in wire/frame.hpp: a side that breaks it ends this session and nothing
// else.

#include "event/sources.hpp"
#include "shim/client_queue.hpp"
#include "shim/guest_channel.hpp"
#include "util/fd.hpp"
#include "wire/message.hpp"

#include <functional>
#include <memory>

namespace wd::shim {

class Session {
public:
    struct Ends {
        Fd client;  // stream socket, non-blocking
        Fd request; // memfd with an encoded ExecRequest
        std::size_t request_size = 0;
    };
    // `over` is called once, when the session can be dropped, but not from inside which calls: the
    // owner must not destroy the session before `over` has returned.
    static Result<std::unique_ptr<Session>> create(const event::Loop& loop, GuestChannel& guest,
                                                   std::uint32_t channel, Ends ends,
                                                   std::function<void()> over);
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Sends the next piece of the request. Nothing is read from the client before the last of them.
    void send_open_piece();
    bool opening() const noexcept { return state_ == State::opening; }

    void on_agent_frame(const wire::Frame& frame);
    // Writes what waits for the client, and watches for what is possible now. To be called after a
    // batch of frames, and when the guest's congestion has changed.
    void update();

    // Ends the session with an error frame; the agent is not told (it is gone).
    void fail(const wire::Failure& failure);

private:
    enum class State {
        opening,   // pieces of the request are left
        open,      // the agent has the request
        finishing, // the last frame is in the queue
        over,
    };
    Session(GuestChannel& guest, std::uint32_t channel, Ends ends, std::function<void()> over)
        : guest_(guest), channel_(channel), ends_(std::move(ends)), over_(std::move(over)) {}
    void on_io(std::uint32_t events);
    void read_client();
    void on_client_frame(const wire::Frame& frame);
    bool relay_client_data(const wire::Frame& frame);
    bool relay_client_credit(const wire::Frame& frame);
    bool relay_agent_data(const wire::Frame& frame);
    bool relay_agent_credit(const wire::Frame& frame);
    bool relay_agent_end(const wire::Frame& frame);
    void to_agent(wire::FrameType type, std::uint8_t flag = 0,
                  std::span<const std::byte> payload = {});
    void blame(wire::Failure::Kind kind, std::string message);
    void finish(wire::FrameType type, const wire::Bytes& payload);
    void end();

    GuestChannel& guest_;
    const std::uint32_t channel_;
    Ends ends_;
    std::function<void()> over_;
    event::Io io_;
    State state_ = State::opening;
    std::size_t request_sent_ = 0;
    wire::FrameReader reader_;
    ClientQueue queue_;
    bool opened_ = false;    // the agent has said so
    bool deaf_ = false;      // the client takes no more output
    bool in_unread_ = false; // the agent has said that nobody reads stdin any more
    bool in_ended_ = false;  // eof of stdin has been relayed
    bool out_ended_[2] = {}; // of stdout, stderr
    wire::CreditAccount in_credit_;
    wire::CreditAccount out_credit_[2];
    std::uint32_t watched_ = 0;
    bool watching_ = true;
};

} // namespace wd::shim
