#pragma once
// Follows a job of the daemon to its end, with progress on stderr: one line that is rewritten on a
// terminal, otherwise a line whenever what the job does has changed.

#include "cli/bus.hpp"
#include "cli/output.hpp"

#include <string>

namespace wd::cli {

class JobWatch {
public:
    // The bus must outlive it, and may not be used by others once run() was called.
    explicit JobWatch(Bus& bus) : bus_(bus) {}

    // Before the job is started, so that nothing of it is missed.
    Result<void> subscribe();

    struct End {
        std::string state; // done, failed, cancelled
        std::string status;
    };
    // ^C cancels the job and waits for its end; a second one leaves it running (cancelled). A
    // workdird that goes away is waited for: the job is a unit of its own.
    Result<End> run(const std::string& path);

private:
    void show(const Json& properties);

    Bus& bus_;
    Progress progress_;
    std::string job_;
    bool changed_ = true;
    std::string last_status_;
};

} // namespace wd::cli
