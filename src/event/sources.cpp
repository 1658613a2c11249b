#include "event/sources.hpp"

#include <cerrno>

#include <sys/signalfd.h>

namespace wd::event {

struct Source::State {
    sd_event_source* source = nullptr;
    Io::Callback on_io;
    std::function<void()> on_time;
    Child::Callback on_child;
    Signal::Callback on_signal;

    ~State() {
        if (source != nullptr) {
            sd_event_source_disable_unref(source);
        }
    }
};

namespace {

using StatePtr = std::shared_ptr<Source::State>;

// sd-event keeps this small heap object as userdata; it holds the state weakly, and the callback
// holds it strongly while it runs.
struct Handle {
    std::weak_ptr<Source::State> state;
};

StatePtr lock(void* userdata) {
    return static_cast<Handle*>(userdata)->state.lock();
}

void destroy_handle(void* userdata) {
    delete static_cast<Handle*>(userdata);
}

int on_io(sd_event_source*, int, uint32_t events, void* userdata) {
    if (const StatePtr state = lock(userdata)) {
        state->on_io(events);
    }
    return 0;
}

int on_time(sd_event_source*, uint64_t, void* userdata) {
    if (const StatePtr state = lock(userdata)) {
        state->on_time();
    }
    return 0;
}

int on_defer(sd_event_source*, void* userdata) {
    return on_time(nullptr, 0, userdata);
}

int on_child(sd_event_source*, const siginfo_t* info, void* userdata) {
    if (const StatePtr state = lock(userdata)) {
        state->on_child(*info);
    }
    return 0;
}

int on_signal(sd_event_source*, const signalfd_siginfo* info, void* userdata) {
    if (const StatePtr state = lock(userdata)) {
        state->on_signal(*info);
    }
    return 0;
}

// Ties a new sd-event source to its state: the handle is freed when sd-event drops the source.
template <class Add>
Result<void> attach(const StatePtr& state, const char* what, Add add) {
    auto handle = std::make_unique<Handle>(Handle{state});
    if (const int r = add(&state->source, handle.get()); r < 0) {
        return fail_errno(-r, what);
    }
    (void)sd_event_source_set_destroy_callback(state->source, destroy_handle);
    (void)handle.release();
    return {};
}

} // namespace

Source& Source::operator=(Source&& other) noexcept {
    if (this != &other) {
        reset();
        state_ = std::move(other.state_);
    }
    return *this;
}

Source::~Source() {
    reset();
}

void Source::reset() {
    // A callback that is running holds the state, so the source must be stopped here, not there.
    if (state_ && state_->source != nullptr) {
        sd_event_source_disable_unref(state_->source);
        state_->source = nullptr;
    }
    state_.reset();
}

Result<Io> Io::create(const Loop& loop, int fd, std::uint32_t epoll_events, Callback callback) {
    Io io;
    io.state_ = std::make_shared<State>();
    io.state_->on_io = std::move(callback);
    auto done = attach(io.state_, "watch a file descriptor", [&](sd_event_source** s, void* u) {
        return sd_event_add_io(loop.get(), s, fd, epoll_events, on_io, u);
    });
    if (!done) {
        return fail(std::move(done).error());
    }
    return io;
}

void Io::set_events(std::uint32_t epoll_events) {
    if (state_) {
        (void)sd_event_source_set_io_events(state_->source, epoll_events);
    }
}

void Io::set_enabled(bool enabled) {
    if (state_) {
        (void)sd_event_source_set_enabled(state_->source, enabled ? SD_EVENT_ON : SD_EVENT_OFF);
    }
}

Result<Timer> Timer::create(const Loop& loop, std::chrono::microseconds after, Callback callback) {
    Timer timer;
    timer.state_ = std::make_shared<State>();
    timer.state_->on_time = std::move(callback);
    // Accuracy 1 ms: the default of 250 ms is for wake-ups that may be late.
    auto done = attach(timer.state_, "start a timer", [&](sd_event_source** s, void* u) {
        return sd_event_add_time_relative(loop.get(), s, CLOCK_MONOTONIC,
                                          static_cast<uint64_t>(after.count()), 1000, on_time, u);
    });
    if (!done) {
        return fail(std::move(done).error());
    }
    return timer;
}

Result<Defer> Defer::create(const Loop& loop, Callback callback) {
    Defer defer;
    defer.state_ = std::make_shared<State>();
    defer.state_->on_time = std::move(callback);
    auto done = attach(defer.state_, "defer a call", [&](sd_event_source** s, void* u) {
        return sd_event_add_defer(loop.get(), s, on_defer, u);
    });
    if (!done) {
        return fail(std::move(done).error());
    }
    return defer;
}

Result<Child> Child::create(const Loop& loop, pid_t pid, Callback callback) {
    Child child;
    child.state_ = std::make_shared<State>();
    child.state_->on_child = std::move(callback);
    auto done = attach(child.state_, "watch a child", [&](sd_event_source** s, void* u) {
        const int r = sd_event_add_child(loop.get(), s, pid, WEXITED, on_child, u);
        return r < 0 ? r : sd_event_source_set_child_process_own(*s, 1);
    });
    if (!done) {
        return fail(std::move(done).error());
    }
    return child;
}

Result<Signal> Signal::create(const Loop& loop, int signo, Callback callback) {
    Signal signal;
    signal.state_ = std::make_shared<State>();
    signal.state_->on_signal = std::move(callback);
    auto done = attach(signal.state_, "watch a signal", [&](sd_event_source** s, void* u) {
        return sd_event_add_signal(loop.get(), s, signo, on_signal, u);
    });
    if (!done) {
        return fail(std::move(done).error());
    }
    return signal;
}

Result<void> block_signals(std::initializer_list<int> signals) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signo : signals) {
        sigaddset(&set, signo);
    }
    if (::sigprocmask(SIG_BLOCK, &set, nullptr) < 0) {
        return fail_errno(errno, "block signals");
    }
    return {};
}

} // namespace wd::event
