#pragma once
// Poller: epoll, edge-triggered, with handlers as objects. Watched: an Fd that is in it.

#include "agent/outcome.hpp"
#include "util/fd.hpp"

#include <array>
#include <cstdint>

#include <sys/epoll.h>

namespace wd::agent {

class EventHandler {
public:
    // Edge-triggered: called when something changed, so remember readiness until EAGAIN.
    // May destroy any Watched, its own too, but not this handler itself.
    virtual void on_events(std::uint32_t events) = 0;

protected:
    ~EventHandler() = default;
};

class Poller {
public:
    static Outcome<Poller> create();

    Outcome<void> add(int fd, std::uint32_t events, EventHandler& handler);
    void remove(int fd, const EventHandler& handler);

    // Waits for at most `timeout_ms` (-1: without end) and calls the handlers.
    void wait(int timeout_ms);

private:
    explicit Poller(Fd epoll) : epoll_(std::move(epoll)) {}

    Fd epoll_;
    std::array<epoll_event, 64> batch_{};
    int batch_size_ = 0;
    int batch_at_ = 0;
};

// Owns a descriptor and its place in the poller. A forked child shares the descriptor for a moment,
// so closing alone would not take it out (epoll(7), question 6).
class Watched {
public:
    Watched() = default;
    Watched(Watched&& other) noexcept
        : poller_(std::exchange(other.poller_, nullptr)),
          fd_(std::move(other.fd_)),
          handler_(other.handler_) {}
    Watched& operator=(Watched&& other) noexcept {
        if (this != &other) {
            reset();
            poller_ = std::exchange(other.poller_, nullptr);
            fd_ = std::move(other.fd_);
            handler_ = other.handler_;
        }
        return *this;
    }
    ~Watched() { reset(); }

    static Outcome<Watched> create(Poller& poller, Fd fd, std::uint32_t events,
                                   EventHandler& handler);

    int get() const { return fd_.get(); }
    explicit operator bool() const { return static_cast<bool>(fd_); }
    void reset() { static_cast<void>(release()); }
    // Out of the poller, but open.
    [[nodiscard]] Fd release();

private:
    Poller* poller_ = nullptr;
    Fd fd_;
    EventHandler* handler_ = nullptr;
};

} // namespace wd::agent
