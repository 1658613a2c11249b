#pragma once
// Agent: the loop of pid 1, and the frames of channel 0.

#include "agent/cgroup.hpp"
#include "agent/drain.hpp"
#include "agent/exec_table.hpp"
#include "agent/poller.hpp"
#include "agent/port.hpp"
#include "agent/root_fs.hpp"

#include <memory>

namespace wd::agent {

class Agent {
public:
    // SIGCHLD is blocked. `start_ns`: boot_ns at the start of main.
    Agent(Poller& poller, Port& port, Fd child_signals, std::uint64_t start_ns);
    [[noreturn]] void run();

private:
    enum class State { fresh, ready, failed, stopping };

    class ChildSignals final : public EventHandler {
    public:
        ChildSignals(Poller& poller, Fd fd);
        bool take(); // whether some arrived
        void on_events(std::uint32_t) override { arrived_ = true; }

    private:
        Watched fd_;
        bool arrived_ = true;
    };

    void on_connection();
    void say_hello();
    void on_control(const wire::Frame& frame);
    void on_frame_before_setup(const wire::Frame& frame);
    void on_setup_piece(const wire::Frame& frame);
    void on_setup(const wire::Setup& setup);
    Outcome<wire::Ready> set_up(const wire::Setup& setup, std::uint64_t received_ns);
    void settle();
    void begin_shutdown();
    void go_on_with_shutdown(bool children);
    int timeout_ms() const;

    Poller& poller_;
    Port& port_;
    ChildSignals child_signals_;
    std::uint64_t start_ns_;
    State state_ = State::fresh;
    bool mounted_ = false;
    std::string names_; // as set last
    Root root_;
    wire::Bytes setup_; // the pieces so far
    Drains drains_;
    std::unique_ptr<CgroupTree> cgroups_;
    std::unique_ptr<ExecTable> execs_; // once there are cgroups
    std::uint64_t stop_deadline_ = UINT64_MAX;
    bool stop_killed_ = false;
};

} // namespace wd::agent
