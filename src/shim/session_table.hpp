#pragma once
// SessionTable: the sessions of a sandbox, by channel of the agent.

#include "shim/session.hpp"

#include <deque>
#include <map>
#include <vector>

namespace wd::shim {

inline constexpr std::size_t kMaxSessions = 128;

class SessionTable {
public:
    // `on_change` is called from the loop after the number of sessions has changed.
    SessionTable(const event::Loop& loop, std::function<void()> on_change)
        : loop_(loop), on_change_(std::move(on_change)) {}
    SessionTable(const SessionTable&) = delete;
    SessionTable& operator=(const SessionTable&) = delete;

    // Sessions can be opened from here on. `guest` must live until close_all().
    void attach(GuestChannel& guest) { guest_ = &guest; }

    // fds as in control::OpenSession. What goes wrong is said on the session itself.
    void open(Fd client, Fd request);

    void on_guest_frame(const wire::Frame& frame);
    void on_guest_batch();
    void on_guest_drained();

    // Ends every session with this failure, and every later one: the guest is gone.
    void close_all(wire::Failure failure);

    std::size_t size() const noexcept { return sessions_.size(); }

private:
    void send_opens();
    void retire(std::uint32_t channel);
    std::uint32_t next_channel();

    const event::Loop& loop_;
    std::function<void()> on_change_;
    GuestChannel* guest_ = nullptr;
    std::map<std::uint32_t, std::unique_ptr<Session>> sessions_;
    std::deque<std::uint32_t> opening_;  // one request at a time goes to the agent
    std::vector<std::uint32_t> touched_; // by the current batch
    std::vector<std::unique_ptr<Session>> retired_;
    event::Defer clean_up_;
    std::uint32_t last_channel_ = 0;
    wire::Failure closed_{.kind = wire::Failure::Kind::unreachable,
                          .message = "the guest is not running yet"};
};

} // namespace wd::shim
