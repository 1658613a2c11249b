#pragma once
// ControlServer: the shim's side of src/control. One connection at a time: a new one replaces the
// old, so that a restarted workdird gets in whatever became of the one before it.

#include "control/message.hpp"
#include "control/socket.hpp"
#include "event/sources.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <sys/types.h>

namespace wd::shim {

class ControlServer {
public:
    struct Handler {
        std::function<void()> on_connected; // send Hello, and what has happened so far
        std::function<void(control::Request, std::vector<Fd>)> on_request;
    };

    // `listener`: a listening SOCK_SEQPACKET socket. Peers of other uids than `trusted` are
    // dropped.
    static Result<std::unique_ptr<ControlServer>> create(const event::Loop& loop, Fd listener,
                                                         uid_t trusted, Handler handler);
    ControlServer(const ControlServer&) = delete;
    ControlServer& operator=(const ControlServer&) = delete;

    // Nothing happens when nobody is connected: on_connected tells a later one.
    void send(const control::Event& event);
    // All that was sent has been handed to the kernel, or nobody is there to read it.
    bool flushed() const noexcept { return queue_.empty(); }

private:
    ControlServer(const event::Loop& loop, Fd listener, uid_t trusted, Handler handler)
        : loop_(loop),
          listener_(std::move(listener)),
          trusted_(trusted),
          handler_(std::move(handler)) {}
    void on_listener();
    void on_connection(std::uint32_t events);
    void receive();
    void flush();
    void drop();

    const event::Loop& loop_;
    Fd listener_;
    uid_t trusted_;
    Handler handler_;
    event::Io listener_io_;
    Fd connection_;
    event::Io connection_io_;
    std::deque<std::string> queue_;
};

} // namespace wd::shim
