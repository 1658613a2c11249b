#pragma once
// Shim: the program. Listens, launches one Vm when it is told to, opens sessions in it, and ends
// with it: the exit status is the reason (control::exit_status_of).

#include "control/message.hpp"
#include "event/sources.hpp"
#include "shim/control_server.hpp"
#include "shim/notifier.hpp"
#include "shim/session_table.hpp"
#include "shim/vm.hpp"

#include <chrono>
#include <memory>
#include <optional>

namespace wd::shim {

class Shim {
public:
    // SIGTERM, SIGINT and SIGCHLD must be blocked. `loop` must outlive the shim.
    static Result<std::unique_ptr<Shim>> create(event::Loop& loop, Fd listener, uid_t trusted);
    Shim(const Shim&) = delete;
    Shim& operator=(const Shim&) = delete;

private:
    explicit Shim(event::Loop& loop);

    void on_connected();
    void on_request(control::Request request, std::vector<Fd> fds);
    void on_launch(control::Launch launch, std::vector<Fd> fds);
    void stop(std::chrono::milliseconds deadline);
    void on_ended(const control::Ended& ended);
    void leave_when_flushed();
    void set_status(std::string status);
    void notify_status();
    void notify_activity();

    event::Loop& loop_;
    Notifier notifier_;
    SessionTable sessions_;
    std::unique_ptr<ControlServer> control_;
    std::unique_ptr<Vm> vm_;
    event::Signal terminate_;
    event::Signal interrupt_;
    event::Timer linger_;
    event::Timer status_timer_;
    std::optional<control::Ready> ready_;
    std::optional<control::Snapshotted> snapshotted_;
    std::optional<control::Ended> ended_;
    std::string status_; // empty: running, with the number of sessions
    std::string notified_;
    bool active_ = false; // as said last
};

} // namespace wd::shim
