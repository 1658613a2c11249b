#pragma once
// Exec: one command on one channel, from the request to its exit frame.
//
// It ends when its main process ends: what is in the pipes at that moment is still delivered (as
// credit permits), then eof for both streams, then exit. Processes that stay behind go on.

#include "agent/cgroup.hpp"
#include "agent/drain.hpp"
#include "agent/port.hpp"
#include "agent/spawn.hpp"
#include "wire/frame.hpp"

#include <array>
#include <optional>

namespace wd::agent {

class Exec {
public:
    struct Parts { // what all execs share
        Poller& poller;
        Port& port;
        CgroupTree& cgroups;
        Drains& drains;
    };

    // Starts it. A failure is for an open_failed frame.
    static Outcome<std::unique_ptr<Exec>> create(const Parts& parts, std::uint32_t channel,
                                                 const wire::ExecRequest& request,
                                                 std::span<const std::string> setup_env);
    ~Exec();
    Exec(const Exec&) = delete;
    Exec& operator=(const Exec&) = delete;

    std::uint32_t channel() const { return channel_; }
    pid_t pid() const { return pid_; } // -1 once it was reaped
    bool over() const { return phase_ == Phase::over; }

    // Any frame of the channel but open.
    void on_frame(const wire::Frame& frame);
    // The main process was reaped; `status` as in waitpid(2).
    void on_reaped(int status);
    // The client leaves; the command goes on, its output is dropped.
    void detach();
    // The host side of the port is gone: detach(), and never again a frame. channel() is then 0.
    void orphan();

    // Puts at most one data frame into the port's queue; false when there is none to send now.
    // Precondition: port.has_data_room().
    bool produce();

    std::uint64_t deadline() const { return deadline_; } // boot_ns; kNever
    void on_deadline();

private:
    enum class Phase {
        starting, // forked, not yet the program
        running,
        ended, // main process gone; output on its way
        over,  // exit or open_failed is queued
    };
    // Why its processes are being ended.
    enum class Ending { no, timeout, closed };

    struct Slot final : EventHandler {
        using Method = void (Exec::*)(std::uint32_t);
        Slot(Exec& exec, Method method) : exec_(exec), method_(method) {}
        void on_events(std::uint32_t events) override { (exec_.*method_)(events); }
        Exec& exec_;
        Method method_;
    };

    struct Output {
        Watched fd;
        wire::CreditAccount credit;
        std::uint64_t left = UINT64_MAX; // to deliver, once the main process has ended
        bool readable = false;
        bool at_end = false; // nothing more will be sent
    };

    Exec(const Parts& parts, std::uint32_t channel, Cgroup cgroup);
    Outcome<void> watch(Spawned spawned);

    void on_status(std::uint32_t events);
    void on_in(std::uint32_t events);
    void on_out(std::uint32_t events);
    void on_err(std::uint32_t events);
    void on_cgroup(std::uint32_t events);
    void on_output(Output& output, std::uint32_t events);

    void on_data(std::span<const std::byte> data);
    void on_credit(const wire::Frame& frame);
    void on_signal(std::span<const std::byte> payload);
    void close();
    void violation(const char* what);

    void opened();
    void open_failed(const wire::Failure& failure);
    void write_in();
    void count_in(std::size_t bytes);
    void grant_in(std::uint32_t bytes);
    void stop_in();
    void on_in_unread();
    bool produce_from(wire::Stream stream, Output& output);
    void end_output(wire::Stream stream, Output& output);
    void drop_output();
    void begin_ending(Ending why, std::uint64_t grace_ns);
    void begin_draining();
    void finish_if_drained();
    void send(wire::FrameType type, std::uint8_t flag, std::span<const std::byte> payload);

    Output& output(wire::Stream stream) { return outputs_[stream == wire::Stream::err]; }

    Parts parts_;
    std::uint32_t channel_;
    Cgroup cgroup_;
    pid_t pid_ = -1;
    Phase phase_ = Phase::starting;
    Ending ending_ = Ending::no;
    bool killed_ = false; // SIGKILL was sent to all of it
    bool silent_ = false; // the client broke the protocol: nothing more is read from it
    int wait_status_ = 0;
    std::uint64_t deadline_ = kNever_;
    std::uint64_t early_signals_ = 0; // asked for before the program ran; bit n = signal n + 1

    Slot status_slot_{*this, &Exec::on_status};
    Slot in_slot_{*this, &Exec::on_in};
    Slot out_slot_{*this, &Exec::on_out};
    Slot err_slot_{*this, &Exec::on_err};
    Slot cgroup_slot_{*this, &Exec::on_cgroup};

    Watched status_;
    std::vector<std::byte> status_text_;
    Watched cgroup_events_; // while waiting for the last of its processes

    Watched in_;
    wire::CreditAccount in_credit_;   // what the client may still send
    std::vector<std::byte> in_queue_; // what the pipe did not take, at most a window
    std::size_t in_sent_ = 0;         // of in_queue_
    std::uint32_t in_owed_ = 0;       // written into the pipe, not granted anew yet
    bool in_eof_ = false;

    std::array<Output, 2> outputs_;
    bool err_next_ = false; // fairness between the two

    static constexpr std::uint64_t kNever_ = UINT64_MAX;
};

} // namespace wd::agent
