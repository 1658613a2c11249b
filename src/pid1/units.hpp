#pragma once
// PID 1 as workdird needs it: transient units, their jobs, and what became of them.
//
// Everything is asynchronous and runs in the loop of the connection, except watch(), which waits
// for the bus (not for PID 1) to install a match. Callbacks come exactly once, also with an error
// when PID 1 does not answer.

#include "event/loop.hpp"
#include "pid1/property.hpp"
#include "util/result.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace wd::bus {
class Connection;
}

namespace wd::pid1 {

struct UnitState {
    std::string name;
    std::string active_state;  // active, activating, deactivating, inactive, failed
    std::string result;        // of the service: success, exit-code, signal, oom-kill, timeout, …
    std::string status_text;   // what it said with sd_notify STATUS=
    std::string invocation_id; // 32 hex digits
    std::int32_t main_code = 0;   // CLD_* of the main process, 0 while it runs
    std::int32_t main_status = 0; // its exit status or signal
    std::uint32_t main_pid = 0;

    bool is_gone() const { return active_state == "inactive" || active_state == "failed"; }
};

class Units {
public:
    // Subscribes to PID 1's signals. Error: unreachable when PID 1 is not systemd.
    static Result<std::unique_ptr<Units>> create(const event::Loop& loop, bus::Connection& bus);

    // Starts it and waits for its job. Success: the job is done (Type=notify: READY=1 came).
    // Error: start_failed with PID 1's word for it.
    using Started = std::function<void(Result<void>)>;
    void start_transient(const std::string& name, const std::vector<Property>& properties,
                         Started callback);

    using Done = std::function<void(Result<void>)>;
    // Begins a stop; done when PID 1 has accepted the job. A unit that is not there: success.
    void stop(const std::string& name, Done callback);
    // SIGKILL to every process of it. A unit that is not there: success.
    void kill(const std::string& name, Done callback);
    // Forgets a failed unit, so that its name is free again. Success when there is none.
    void reset_failed(const std::string& name, Done callback);

    // Of a unit that is not there: active_state "inactive" and the rest empty.
    void query(const std::string& name, std::function<void(Result<UnitState>)> callback);

    // Names of loaded units that match a glob, in any state.
    void list(const std::string& pattern,
              std::function<void(Result<std::vector<std::string>>)> callback);

    // Calls back (with no detail: query() tells) whenever properties of the unit change, for as
    // long as the watch lives. It may be dropped from inside its own callback.
    using Watch = std::shared_ptr<void>;
    Watch watch(const std::string& name, std::function<void()> changed);

    ~Units();

private:
    struct Impl; // keeps the D-Bus library's types out of here
    explicit Units(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// /org/freedesktop/systemd1/unit/…, sd_bus_path_encode(3)
std::string unit_path(const std::string& name);

} // namespace wd::pid1
