#pragma once
// Vm: one run of the guest, from spawning QEMU to knowing why it ended. Owns the process, QMP, the
// console and the agent's channel; the frames of sessions go to the table.

#include "control/message.hpp"
#include "shim/console.hpp"
#include "shim/end_reason.hpp"
#include "shim/guest_channel.hpp"
#include "shim/qemu_process.hpp"
#include "shim/session_table.hpp"
#include "shim/snapshot_writer.hpp"
#include "vmm/qmp_client.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace wd::shim {

// A snapshot that is being made.
struct Snapshotting {
    bool compact = false;
    Fd memory;
    Fd state;
    bool quiesced = false;
    std::string failure; // it is being thawed, and then this is said
    event::Timer timer;
};

class Vm : public GuestChannel::Handler {
public:
    // Calls come from the loop. None may destroy the Vm.
    struct Handler {
        std::function<void(model::Phase)> on_phase; // has begun
        std::function<void(const control::Ready&)> on_ready;
        std::function<void(const control::Snapshotted&)> on_snapshotted; // the end follows
        std::function<void(const std::string&)> on_snapshot_failed;      // and it runs on
        std::function<void(const std::string&)> on_status;   // a line for `systemctl status`
        std::function<void(const control::Ended&)> on_ended; // once; QEMU is gone
    };

    // fds as in control::Launch. `sessions` and `loop` must outlive the Vm.
    static Result<std::unique_ptr<Vm>> launch(const event::Loop& loop, control::Launch launch,
                                              std::vector<Fd> fds, SessionTable& sessions,
                                              Handler handler);
    ~Vm() override = default;

    // Shuts the guest down in order; at the deadline QEMU is told to quit, and soon after killed.
    // A second call can only bring the deadline forward.
    void stop(std::chrono::milliseconds deadline);

    // As control::Snapshot says: one of on_snapshotted, on_snapshot_failed and on_ended follows.
    void snapshot(const control::Snapshot& request, std::vector<Fd> fds);

    bool snapshotting() const noexcept { return snapshot_.has_value(); }
    bool ready() const noexcept { return stage_ == Stage::running; }

    void on_guest_frame(const wire::Frame& frame) override;
    void on_guest_batch() override { sessions_.on_guest_batch(); }
    void on_guest_drained() override { sessions_.on_guest_drained(); }
    void on_guest_lost(const std::string& why, bool violation) override;

private:
    enum class Stage { vmm, kernel, agent, running, ended }; // what it waits for

    Vm(const event::Loop& loop, control::Launch launch, SessionTable& sessions, Handler handler)
        : loop_(loop),
          launch_(std::move(launch)),
          sessions_(sessions),
          handler_(std::move(handler)) {}
    Result<void> start(std::vector<Fd> fds);

    void on_greeting();
    void load_state();
    void on_resumed();
    void on_quiesced();
    void give_up_quiet();
    void save_state();
    void write_snapshot();
    void fail_snapshot(std::string why);
    void on_qmp_event(const vmm::QmpEvent& event);
    void on_qmp_lost(const Error& error);
    void on_no_space();
    void retry_disk();
    void check_disk(unsigned errors_before);

    void on_agent_control(const wire::Frame& frame);
    void on_hello(const wire::Hello& hello);
    void on_agent_ready(const wire::Ready& ready);
    void send_setup(std::uint64_t version);
    void become_ready();

    void on_boot_timeout();
    void quit();
    void finish(model::EndReason reason, std::string detail);
    void finish_unless_exit_follows(model::EndReason reason, std::string detail);
    void on_exit(const siginfo_t& info);
    event::Timer timer(std::chrono::milliseconds after, std::function<void()> callback);

    const event::Loop& loop_;
    control::Launch launch_;
    SessionTable& sessions_;
    Handler handler_;
    std::unique_ptr<QemuProcess> qemu_;
    std::unique_ptr<vmm::QmpClient> qmp_;
    std::unique_ptr<Console> console_;
    std::unique_ptr<GuestChannel> guest_;

    std::optional<Snapshotting> snapshot_;
    bool thawing_ = false; // a snapshot was given up; the guest has not said so far that it runs
    std::unique_ptr<SnapshotWriter> writer_;
    int state_fd_ = -1; // the number in QEMU of what it is restored from
    std::uint64_t version_ = wire::kProtocolVersion; // that the agent speaks
    Stage stage_ = Stage::vmm;
    control::Ready ready_;
    EndFacts facts_;
    bool stopping_ = false;
    std::chrono::steady_clock::time_point stop_due_;
    bool no_space_ = false; // paused for want of disk space
    unsigned no_space_retries_ = 0;
    unsigned no_space_errors_ = 0;
    event::Timer boot_timer_;
    event::Timer stop_timer_;
    event::Timer grace_timer_;
    event::Timer disk_timer_;
};

} // namespace wd::shim
