#include "bus/connection.hpp"

#include "bus/error.hpp"
#include "util/log.hpp"

#include <utility>

#include <poll.h>
#include <sys/epoll.h>
#include <systemd/sd-event.h>

namespace wd::bus {
namespace {

// Messages handled in one go before other sources of the loop get a turn. What is left in the
// queue of sd-bus makes its timeout 0, so the loop comes back without waiting.
constexpr int kBurst = 16;

} // namespace

// Shared with a running callback, which may destroy the Connection.
struct Connection::State : std::enable_shared_from_this<State> {
    std::unique_ptr<sdbus::IConnection> connection;
    sd_event_source* io = nullptr;
    sd_event_source* timer = nullptr;
    std::function<void(const Error&)> lost;

    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() { detach(); }

    void detach() {
        io = sd_event_source_disable_unref(io);
        timer = sd_event_source_disable_unref(timer);
    }

    void fail_with(const Error& error) {
        detach();
        if (auto callback = std::exchange(lost, nullptr)) {
            callback(error);
        } else {
            log::error("the connection to the bus is lost: " + error.message);
        }
    }

#if WORKDIR_SDBUS_MAJOR < 2
    // Before each wait: sd-bus says anew what it waits for. Whatever a callback of this iteration
    // has queued or read ahead is seen here, so nothing is missed (as sd_bus_attach_event(3) does).
    void prepare() {
        const auto done = attempt([&] {
            const auto data = connection->getEventLoopPollData();
            if (const int r =
                    sd_event_source_set_io_events(io, static_cast<std::uint32_t>(data.events));
                r < 0) { // POLLIN and POLLOUT are EPOLLIN and EPOLLOUT on Linux
                throw sdbus::createError(-r, "watch the bus");
            }
            const bool timed = data.timeout_usec != UINT64_MAX;
            if (timed) {
                (void)sd_event_source_set_time(timer, data.timeout_usec);
            }
            (void)sd_event_source_set_enabled(timer, timed ? SD_EVENT_ON : SD_EVENT_OFF);
        });
        if (!done) {
            fail_with(done.error());
        }
    }

    void process() {
        const auto done = attempt([&] {
            for (int i = 0; i < kBurst && io != nullptr && process_pending(*connection); ++i) {
            }
        });
        if (!done && io != nullptr) {
            fail_with(done.error());
        }
    }

    static int on_prepare(sd_event_source*, void* userdata) {
        const auto self = static_cast<State*>(userdata)->shared_from_this();
        self->prepare();
        return 0;
    }
    static int on_io(sd_event_source*, int, std::uint32_t, void* userdata) {
        const auto self = static_cast<State*>(userdata)->shared_from_this();
        self->process();
        return 0;
    }
    static int on_time(sd_event_source*, std::uint64_t, void* userdata) {
        return on_io(nullptr, 0, 0, userdata);
    }
#endif

    Result<void> attach(const event::Loop& loop, int priority) {
#if WORKDIR_SDBUS_MAJOR >= 2
        return attempt([&] { connection->attachSdEventLoop(loop.get(), priority); });
#else
        const auto data = attempt([&] { return connection->getEventLoopPollData(); });
        if (!data) {
            return fail(data.error());
        }
        int r = sd_event_add_io(loop.get(), &io, data->fd, static_cast<std::uint32_t>(data->events),
                                on_io, this);
        if (r >= 0) {
            r = sd_event_source_set_prepare(io, on_prepare);
        }
        if (r >= 0) {
            r = sd_event_source_set_priority(io, priority);
        }
        if (r >= 0) {
            // Accuracy 1 µs (0 would mean the default, 250 ms): a timeout of 0 is "now".
            r = sd_event_add_time(loop.get(), &timer, CLOCK_MONOTONIC, 0, 1, on_time, this);
        }
        if (r >= 0) {
            r = sd_event_source_set_priority(timer, priority);
        }
        if (r < 0) {
            detach();
            return fail_errno(-r, "attach the bus to the event loop");
        }
        return {};
#endif
    }
};

Connection::Connection(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Connection::Connection(Connection&&) noexcept = default;

Connection& Connection::operator=(Connection&& other) noexcept {
    if (this != &other) {
        std::swap(state_, other.state_);
    }
    return *this;
}

Connection::~Connection() {
    if (state_) {
        state_->detach(); // a running callback may still hold the state
    }
}

Result<Connection> Connection::open_system(const event::Loop& loop, int priority) {
    auto connection = attempt([] { return sdbus::createSystemBusConnection(); });
    if (!connection) {
        Error error = std::move(connection).error();
        error.code = ErrorCode::unreachable;
        return fail(std::move(error).context("connect to the system bus"));
    }
    return attach(loop, std::move(*connection), priority);
}

Result<Connection> Connection::attach(const event::Loop& loop,
                                      std::unique_ptr<sdbus::IConnection> connection,
                                      int priority) {
    auto state = std::make_shared<State>();
    state->connection = std::move(connection);
    if (auto done = state->attach(loop, priority); !done) {
        return fail(std::move(done).error());
    }
    return Connection(std::move(state));
}

sdbus::IConnection& Connection::get() const noexcept {
    return *state_->connection;
}

Result<void> Connection::request_name(const std::string& name) {
    auto done = attempt([&] { bus::request_name(get(), name); });
    if (!done) {
        return fail(std::move(done).error().context("take the bus name " + name));
    }
    return {};
}

void Connection::on_lost(std::function<void(const Error&)> callback) {
    state_->lost = std::move(callback);
}

void Connection::flush(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    (void)attempt([&] {
        for (;;) {
            const auto data = get().getEventLoopPollData();
            const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                deadline - std::chrono::steady_clock::now());
            if ((data.events & POLLOUT) == 0 || left.count() <= 0) {
                return;
            }
            pollfd waiting{data.fd, POLLOUT, 0};
            if (::poll(&waiting, 1, static_cast<int>(left.count())) > 0) {
                (void)process_pending(get());
            }
        }
    });
}

} // namespace wd::bus
