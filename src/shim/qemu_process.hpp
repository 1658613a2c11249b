#pragma once
// QemuProcess: the VMM as a child. It inherits just the descriptors named, an environment of a few
// words, and no chance to outlive the shim.

#include "event/sources.hpp"
#include "util/fd.hpp"
#include "util/pidref.hpp"
#include "vmm/line_reader.hpp"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace wd::shim {

class QemuProcess {
public:
    // The process has ended and is reaped. Called from the loop; everything it wrote to stderr has
    // been logged before.
    using OnExit = std::function<void(const siginfo_t&)>;

    // `inherited` keep their numbers and must be 3 or above. `environment` is added to PATH and
    // LC_ALL. SIGCHLD must be blocked.
    // Error: start_failed with what execve(2) said.
    static Result<std::unique_ptr<QemuProcess>> spawn(const event::Loop& loop,
                                                      const std::vector<std::string>& argv,
                                                      const std::vector<std::string>& environment,
                                                      std::span<const int> inherited,
                                                      OnExit on_exit);
    QemuProcess(const QemuProcess&) = delete;
    QemuProcess& operator=(const QemuProcess&) = delete;
    ~QemuProcess();

    void kill();
    bool killed() const noexcept { return killed_; } // by kill()
    pid_t pid() const noexcept { return pid_.pid(); }
    bool running() const noexcept { return static_cast<bool>(pid_); }
    // Printable; empty when it said nothing.
    const std::string& last_stderr_line() const noexcept { return last_line_; }

private:
    QemuProcess() = default;
    void on_stderr();
    void log_line(std::string_view line);

    PidRef pid_;
    Fd stderr_;
    event::Child child_;
    event::Io stderr_io_;
    vmm::LineReader lines_{1024, vmm::LineReader::Overlong::cut};
    std::string last_line_;
    unsigned logged_ = 0;
    bool killed_ = false;
};

} // namespace wd::shim
