#include "sandbox/machine.hpp"

#include "control/socket.hpp"
#include "util/log.hpp"

#include <cerrno>
#include <chrono>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace wd::sandbox {
namespace {

// Messages of one shim handled in one go, so that a flood from it starves nobody.
constexpr int kBurst = 16;
constexpr int kMaxReconnects = 3;
constexpr std::chrono::milliseconds kQueryRetry{1000};
constexpr std::chrono::milliseconds kLastWord{10'000}; // from the shim's Ended to its exit

template <class Callback, class... Arguments>
void tell(const Callback& callback, const Arguments&... arguments) {
    if (callback) {
        callback(arguments...);
    }
}

} // namespace

model::End Machine::end_of(const pid1::UnitState& state) {
    if (state.result == "oom-kill") {
        return {.reason = model::EndReason::oom, .detail = "the unit exceeded its MemoryMax"};
    }
    if (state.result == "success" || state.active_state == "inactive") {
        return {.reason = model::EndReason::stopped, .detail = "the unit was stopped"};
    }
    // CLD_EXITED: the shim's exit status says why, for when nobody was connected to hear it.
    if (state.main_code == CLD_EXITED) {
        const model::EndReason reason =
            control::reason_of_exit_status(state.main_status).value_or(model::EndReason::vmm_crash);
        return {.reason = reason,
                .detail = fmt::format("the shim ended with status {}", state.main_status)};
    }
    return {.reason = model::EndReason::signal,
            .detail =
                fmt::format("the shim ended by signal {} ({})", state.main_status, state.result)};
}

Machine::Machine(const event::Loop& loop, pid1::Units& units, std::string unit,
                 std::filesystem::path socket_path, Listener listener)
    : loop_(loop),
      units_(units),
      unit_(std::move(unit)),
      socket_path_(std::move(socket_path)),
      listener_(std::move(listener)) {}

Machine::~Machine() = default;

Result<void> Machine::start(const std::function<std::vector<pid1::Property>(int)>& properties) {
    auto listening = control::listen_at(socket_path_);
    if (!listening) {
        return fail(std::move(listening).error());
    }
    if (auto done = connect(); !done) {
        return done;
    }
    watch();
    units_.start_transient(unit_, properties(listening->get()),
                           [this, alive = std::weak_ptr(alive_)](Result<void> result) {
                               if (!alive.expired()) {
                                   on_started(std::move(result));
                               }
                           });
    return {};
}

void Machine::on_started(Result<void> result) {
    started_ = true;
    if (!result) {
        start_error_ = result.error().message;
    }
    refresh();
}

Result<void> Machine::launch(const control::Launch& launch, const std::vector<int>& fds) {
    return send(launch, fds);
}

Result<void> Machine::snapshot(const control::Snapshot& snapshot, int memory, int state) {
    // A Hello that comes after the request means another connection then, which it did not reach.
    if (!greeted_) {
        return fail(ErrorCode::unreachable, "the sandbox's shim has not answered yet");
    }
    return send(snapshot, {memory, state});
}

Result<void> Machine::adopt() {
    started_ = true;
    watch();
    refresh();
    return connect();
}

Result<void> Machine::connect() {
    auto connection = control::connect_to(socket_path_.string());
    if (!connection) {
        return fail(std::move(connection).error());
    }
    connection_ = std::move(*connection);
    greeted_ = false;
    auto io = event::Io::create(loop_, connection_.get(), EPOLLIN,
                                [this](std::uint32_t) { on_socket(); });
    if (!io) {
        return fail(std::move(io).error());
    }
    io_ = std::move(*io);
    return {};
}

void Machine::watch() {
    watch_ = units_.watch(unit_, [this] { refresh(); });
}

void Machine::on_socket() {
    const std::weak_ptr<bool> alive = alive_;
    for (int i = 0; i < kBurst && connection_; ++i) {
        auto packet = control::receive_packet(connection_.get(), control::kMaxMessage);
        if (!packet) {
            if (packet.error().errnum != EAGAIN) {
                lose_connection(packet.error());
            }
            return;
        }
        auto event = control::decode_event(packet->text);
        if (!event) {
            // A shim that talks nonsense is broken or taken over; its sandbox ends, and only that.
            log::warning(fmt::format("bad message from the shim: {}", event.error().message),
                         unit_);
            kill({.reason = model::EndReason::agent_lost,
                  .detail = "the shim broke the control protocol: " + event.error().message});
            return;
        }
        on_event(*event);
        if (alive.expired()) {
            return; // a listener has destroyed this
        }
    }
}

void Machine::on_event(const control::Event& event) {
    if (const auto* progress = std::get_if<control::Progress>(&event)) {
        listener_.on_phase(progress->phase);
    } else if (const auto* ready = std::get_if<control::Ready>(&event)) {
        was_ready_ = true;
        listener_.on_ready(*ready);
    } else if (const auto* hello = std::get_if<control::Hello>(&event)) {
        greeted_ = true;
        tell(listener_.on_hello, *hello);
    } else if (const auto* activity = std::get_if<control::Activity>(&event)) {
        tell(listener_.on_activity, *activity);
    } else if (const auto* snapshotted = std::get_if<control::Snapshotted>(&event)) {
        tell(listener_.on_snapshotted, *snapshotted);
    } else if (const auto* failed = std::get_if<control::SnapshotFailed>(&event)) {
        tell(listener_.on_snapshot_failed, failed->message);
    } else if (const auto* ended = std::get_if<control::Ended>(&event)) {
        on_ended(*ended);
    }
}

// The unit ends next, by itself. One that stays is a shim that lies, and is killed.
void Machine::on_ended(const control::Ended& ended) {
    if (ended_) {
        return;
    }
    ended_ = ended;
    kill_after(kLastWord, ended.end);
}

void Machine::lose_connection(const Error& error) {
    log::debug(fmt::format("control connection: {}", error.message), unit_);
    io_.reset();
    connection_.reset();
    refresh();
}

// Asks PID 1 what the unit is now. At most one question is under way; a change that is signalled
// meanwhile asks once more.
void Machine::refresh() {
    if (!started_ || gone_) {
        return;
    }
    if (query_running_) {
        query_again_ = true;
        return;
    }
    query_running_ = true;
    units_.query(unit_, [this, alive = std::weak_ptr(alive_)](Result<pid1::UnitState> state) {
        if (alive.expired()) {
            return;
        }
        query_running_ = false;
        if (std::exchange(query_again_, false)) {
            refresh();
        } else if (state) {
            on_state(*state);
        } else {
            log::warning(
                fmt::format("cannot learn the state of the unit: {}", state.error().message),
                unit_);
            refresh_later();
        }
    });
}

// PID 1 is being restarted, or too much is asked of the bus at once. A unit that has gone gives no
// further signal, so it is asked for again.
void Machine::refresh_later() {
    auto retry = event::Timer::create(loop_, kQueryRetry, [this] { refresh(); });
    if (retry) {
        retry_ = std::move(*retry);
    }
}

void Machine::on_state(const pid1::UnitState& state) {
    if (!state.invocation_id.empty()) {
        invocation_id_ = state.invocation_id;
    }
    if (state.is_gone()) {
        take_last_words();
        finish(state);
    } else if (start_error_ && state.active_state != "deactivating") {
        kill({.reason = model::EndReason::timeout, .detail = *start_error_});
    } else if (!connection_ && state.active_state == "active" && !killed_ && !ended_) {
        reconnect(); // but not to a shim that has said its last word: PID 1 sees its exit next
    }
}

// What the shim sent before it ended is still in the socket.
void Machine::take_last_words() {
    while (connection_) {
        auto packet = control::receive_packet(connection_.get(), control::kMaxMessage);
        if (!packet) {
            break;
        }
        auto event = control::decode_event(packet->text);
        if (event && std::holds_alternative<control::Ended>(*event)) {
            ended_ = std::get<control::Ended>(*event);
        } else if (event && std::holds_alternative<control::Snapshotted>(*event)) {
            on_event(*event);
        }
    }
}

void Machine::reconnect() {
    if (++reconnects_ > kMaxReconnects) {
        kill({.reason = model::EndReason::agent_lost,
              .detail = "the shim closes its control connection"});
        return;
    }
    if (auto done = connect(); !done) {
        kill({.reason = model::EndReason::agent_lost,
              .detail = "the shim cannot be reached: " + done.error().message});
    }
}

void Machine::finish(const pid1::UnitState& state) {
    gone_ = true;
    control::Ended ended = ended_.value_or(control::Ended{});
    if (state.result == "oom-kill") {
        ended.end.reason = model::EndReason::oom;
        if (!ended_) {
            ended.end.detail = "the unit exceeded its MemoryMax";
        }
    } else if (killed_) {
        ended.end = *killed_;
    } else if (!ended_) {
        ended.end = end_of(state);
        if (start_error_) {
            ended.end.detail = *start_error_ + "; " + ended.end.detail;
        }
    }
    ended.was_ready = was_ready_;
    io_.reset();
    connection_.reset();
    deadline_.reset();
    (void)::unlink(socket_path_.c_str());
    // Only when the name is free again is the unit really gone: a start may follow at once.
    units_.reset_failed(unit_, [this, ended = std::move(ended),
                                alive = std::weak_ptr(alive_)](const Result<void>& done) {
        if (alive.expired()) {
            return;
        }
        if (!done) {
            log::warning(fmt::format("reset-failed: {}", done.error().message), unit_);
        }
        // The listener may destroy this object: nothing of it is used afterwards.
        const auto on_gone = listener_.on_gone;
        on_gone(ended);
    });
}

void Machine::shutdown(std::chrono::milliseconds deadline) {
    constexpr std::chrono::milliseconds kGrace{5000}; // for the shim to keep its own deadline
    const auto sent =
        send(control::Shutdown{.deadline_ms = static_cast<std::uint64_t>(deadline.count())}, {});
    if (!sent) {
        units_.stop(unit_, [](const Result<void>&) {});
    }
    kill_after(deadline + kGrace,
               {.reason = model::EndReason::stopped, .detail = "killed: it did not stop in time"});
}

void Machine::kill_after(std::chrono::milliseconds deadline, model::End end) {
    auto timer = event::Timer::create(loop_, deadline, [this, end = std::move(end)] { kill(end); });
    if (timer) {
        deadline_ = std::move(*timer);
    }
}

void Machine::kill(model::End end) {
    if (gone_) {
        return;
    }
    if (!killed_) {
        killed_ = std::move(end);
    }
    // First the processes, so that the stop has nothing to wait for; the stop also takes back a
    // start that PID 1 has not carried out yet.
    const auto log_failure = [unit = unit_](const Result<void>& done) {
        if (!done) {
            log::warning(fmt::format("kill: {}", done.error().message), unit);
        }
    };
    units_.kill(unit_, log_failure);
    units_.stop(unit_,
                [this, log_failure, alive = std::weak_ptr(alive_)](const Result<void>& done) {
                    log_failure(done);
                    if (!alive.expired()) {
                        refresh();
                    }
                });
}

Result<void> Machine::open_session(Fd session, const std::vector<std::byte>& request) {
    Fd memory(::memfd_create("workdir-exec", MFD_CLOEXEC));
    if (!memory) {
        return fail_errno(errno, "memfd_create");
    }
    if (auto done = write_all(memory.get(), request); !done) {
        return done;
    }
    return send(control::OpenSession{}, {session.get(), memory.get()});
}

Result<void> Machine::send(const control::Request& request, const std::vector<int>& fds) {
    if (!connection_) {
        return fail(ErrorCode::unreachable, "the sandbox's shim is not connected");
    }
    const std::string text = control::encode(request);
    if (text.size() > control::kMaxMessage) {
        return fail(
            ErrorCode::limit,
            fmt::format("the launch is {} bytes as JSON, where {} can be passed on; give "
                        "the sandbox a smaller environment (other than ASCII counts double)",
                        text.size(), control::kMaxMessage));
    }
    auto done = control::send_packet(connection_.get(), text, fds);
    if (!done && done.error().errnum == EAGAIN) {
        return fail(ErrorCode::unreachable, "the sandbox's shim does not take requests; see "
                                            "journalctl -u " +
                                                unit_);
    }
    return done;
}

} // namespace wd::sandbox
