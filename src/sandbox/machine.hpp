#pragma once
// Machine: one transient unit with a shim and a VMM in it, from the request to start it until
// nothing of it is left. A sandbox that runs has one; the KVM probe uses one too.
//
// It owns the control socket's path, the connection to the shim and the watch on the unit. All
// callbacks come from the loop and none after destruction; a listener may destroy the Machine.
// Destroying a Machine does not end its unit (a restart of workdird must not).

#include "control/message.hpp"
#include "event/sources.hpp"
#include "pid1/units.hpp"
#include "util/fd.hpp"

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace wd::sandbox {

class Machine {
public:
    struct Listener {
        std::function<void(model::Phase)> on_phase;
        std::function<void(const control::Ready&)> on_ready;
        // May be empty, like the two of a snapshot for a machine that makes none.
        std::function<void(const control::Hello&)> on_hello = {}; // connected, anew each time
        std::function<void(const control::Activity&)> on_activity = {};
        std::function<void(const control::Snapshotted&)> on_snapshotted = {}; // on_gone follows
        std::function<void(const std::string&)> on_snapshot_failed = {};      // it runs on
        // The unit is gone: once, and last.
        std::function<void(const control::Ended&)> on_gone;
    };

    Machine(const event::Loop& loop, pid1::Units& units, std::string unit,
            std::filesystem::path socket_path, Listener listener);
    ~Machine();
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    // Makes the socket and asks PID 1 for the unit. `properties` is called with the listening
    // socket. launch() may follow at once: it waits in the socket's queue. Failures come as
    // on_gone.
    Result<void>
    start(const std::function<std::vector<pid1::Property>(int listening_socket)>& properties);
    // fds as in control::Launch, borrowed.
    Result<void> launch(const control::Launch& launch, const std::vector<int>& fds);

    // fds as in control::Snapshot, borrowed. on_snapshotted and on_gone follow, or
    // on_snapshot_failed, or on_gone alone.
    Result<void> snapshot(const control::Snapshot& snapshot, int memory, int state);

    // Connects to the shim of a unit that runs already (after a restart of workdird). on_ready or
    // on_gone follow.
    Result<void> adopt();

    // The session's other end goes to the shim; `request` is an encoded wire::ExecRequest.
    Result<void> open_session(Fd session, const std::vector<std::byte>& request);

    void shutdown(std::chrono::milliseconds deadline); // in order; on_gone follows
    // At once; on_gone follows with `end`, or with `oom` where that is what had happened.
    void kill(model::End end);

    // How a unit that is gone has ended, by what PID 1 remembers of it.
    static model::End end_of(const pid1::UnitState& state);

    // Whether the end is what the shim itself had to say, and nobody's doing from outside.
    bool ended_by_itself() const noexcept { return ended_ && !killed_ && !start_error_; }

    const std::string& unit() const noexcept { return unit_; }
    const std::string& invocation_id() const noexcept { return invocation_id_; }

private:
    Result<void> connect();
    void watch();
    void reconnect();
    void on_started(Result<void> result);
    void on_socket();
    void on_event(const control::Event& event);
    void on_ended(const control::Ended& ended);
    void lose_connection(const Error& error);
    void refresh();
    void refresh_later();
    void on_state(const pid1::UnitState& state);
    void kill_after(std::chrono::milliseconds deadline, model::End end);
    void take_last_words();
    void finish(const pid1::UnitState& state);
    Result<void> send(const control::Request& request, const std::vector<int>& fds);

    const event::Loop& loop_;
    pid1::Units& units_;
    std::string unit_;
    std::filesystem::path socket_path_;
    Listener listener_;
    std::string invocation_id_;
    Fd connection_;
    event::Io io_;
    event::Timer deadline_; // of an ordered shutdown, or of the exit after Ended
    event::Timer retry_;    // of a question to PID 1
    pid1::Units::Watch watch_;
    std::optional<control::Ended> ended_;    // what the shim said
    std::optional<model::End> killed_;       // why we killed it
    std::optional<std::string> start_error_; // what PID 1 said of the start job
    bool started_ = false;                   // the start job has ended, or the unit was adopted
    bool was_ready_ = false;
    bool gone_ = false;
    bool query_running_ = false;
    bool query_again_ = false;
    int reconnects_ = 0;
    bool greeted_ = false; // the shim has said Hello on this connection
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true); // for replies of PID 1
};

} // namespace wd::sandbox
