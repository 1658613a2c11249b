#pragma once
// Event sources as owners: destroying one removes it from the loop, also from inside its own
// callback. The fd of an Io stays the caller's and must outlive it.

#include "event/loop.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include <signal.h>
#include <sys/epoll.h>

namespace wd::event {

// What all sources share: a stable address for the callback, and the sd-event reference.
class Source {
public:
    Source() noexcept = default;
    Source(Source&&) noexcept = default;
    Source& operator=(Source&& other) noexcept;
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;
    ~Source();

    explicit operator bool() const noexcept { return state_ != nullptr; }
    void reset();

    struct State; // shared with the running callback, which may destroy its Source
protected:
    std::shared_ptr<State> state_;
};

class Io : public Source {
public:
    using Callback = std::function<void(std::uint32_t epoll_events)>;
    static Result<Io> create(const Loop& loop, int fd, std::uint32_t epoll_events,
                             Callback callback);
    void set_events(std::uint32_t epoll_events); // 0 pauses it (EPOLLHUP and EPOLLERR still come)
    void set_enabled(bool enabled);              // false: nothing comes at all
};

class Timer : public Source {
public:
    using Callback = std::function<void()>;
    // One-shot, CLOCK_MONOTONIC, `after` from now.
    static Result<Timer> create(const Loop& loop, std::chrono::microseconds after,
                                Callback callback);
};

// Runs once at the next iteration of the loop.
class Defer : public Source {
public:
    using Callback = std::function<void()>;
    static Result<Defer> create(const Loop& loop, Callback callback);
};

// A child of this process, and its owner: dropped before the callback, it kills and reaps the
// child. The callback gets the siginfo of waitid(2); the child is reaped.
class Child : public Source {
public:
    using Callback = std::function<void(const siginfo_t&)>;
    static Result<Child> create(const Loop& loop, pid_t pid, Callback callback);
};

// A signal, which must be blocked in this thread first (block_signals does it).
class Signal : public Source {
public:
    using Callback = std::function<void(const signalfd_siginfo&)>;
    static Result<Signal> create(const Loop& loop, int signo, Callback callback);
};

Result<void> block_signals(std::initializer_list<int> signals);

} // namespace wd::event
