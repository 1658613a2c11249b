#pragma once
// Connection: the system bus, driven by an event::Loop. No thread of sdbus-c++ is ever started.
//
// All handlers run inside the loop. Synchronous calls through a proxy may be made from it, but they
// block it; prefer the asynchronous ones. The bus address is sd_bus_open_system(3)'s, so
// DBUS_SYSTEM_BUS_ADDRESS is honoured.

#include "bus/compat.hpp"
#include "event/loop.hpp"
#include "util/result.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace wd::bus {

class Connection {
public:
    // Blocks until the bus has answered the handshake. `priority` as in
    // sd_event_source_set_priority(3). Error: unreachable when there is no bus.
    static Result<Connection> open_system(const event::Loop& loop, int priority = 0);

    // Takes a connection that nobody drives yet (a private bus in a test).
    static Result<Connection> attach(const event::Loop& loop,
                                     std::unique_ptr<sdbus::IConnection> connection,
                                     int priority = 0);

    Connection(Connection&&) noexcept;
    Connection& operator=(Connection&&) noexcept;
    ~Connection(); // queued messages are written first; proxies and objects must be gone already

    sdbus::IConnection& get() const noexcept;
    sdbus::IConnection* operator->() const noexcept { return &get(); }

    Result<void> request_name(const std::string& name);

    // Called once, from the loop, when the bus has hung up. Nothing comes after it. Only known for
    // sdbus-c++ 1.x, where the loop is ours; 2.x ends the loop by itself.
    void on_lost(std::function<void(const Error&)> callback);

    // Writes out what is queued, for at most `limit`: before an exit, so that the last replies and
    // signals are not lost. Handlers of messages that have arrived may run.
    void flush(std::chrono::milliseconds limit = std::chrono::milliseconds(1000));

    struct State; // implementation
private:
    explicit Connection(std::shared_ptr<State> state) noexcept;
    std::shared_ptr<State> state_;
};

} // namespace wd::bus
