#pragma once
// Sandbox: one sandbox and everything that happens to it, in whatever state it is. It drives its
// files, its Machine (while it is live) and its row in the store.
//
// Operations are asynchronous; each callback comes once, from the loop. Only one boot runs at a
// time; stop and remove may come at any time, and remove wins over everything. Left alone for its
// idle_timeout it is parked, and a call wakes it: standby.cpp.

#include "image/image_store.hpp"
#include "model/spec.hpp"
#include "sandbox/accel_probe.hpp"
#include "sandbox/boot_queue.hpp"
#include "sandbox/files.hpp"
#include "sandbox/golden.hpp"
#include "sandbox/machine.hpp"
#include "store/store.hpp"
#include "wire/message.hpp"

#include "event/worker.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace wd::sandbox {

// What every sandbox works with; owned by main, outlives them all.
struct Context {
    const event::Loop& loop;
    event::Worker& worker;
    pid1::Units& units;
    store::Store& store;
    image::ImageStore& images;
    AccelProbe& probe;
    BootQueue& queue;
    Goldens& goldens;
    const config::Config& config;
    const Paths& paths;
};

class Sandbox {
public:
    using Done = std::function<void(Result<void>)>;
    using PhaseCallback = std::function<void(model::Phase)>;

    struct Observer {
        std::function<void(Sandbox&)> changed; // the state
        // A call needs it to run, and it is in standby: to be booted, if there is room.
        std::function<void(Sandbox&, Done)> wanted;
        // Nothing of it is left; the owner destroys the object after this call has returned.
        std::function<void(Sandbox&)> removed;
    };

    Sandbox(Context& context, store::SandboxRow row, Observer observer);
    ~Sandbox();
    Sandbox(const Sandbox&) = delete;
    Sandbox& operator=(const Sandbox&) = delete;

    // A new one (state creating): on failure everything of it is removed again. A stopped or failed
    // one (state starting): on failure it is as it was, with the new reason.
    void boot(PhaseCallback on_phase, Done done);
    void stop(std::chrono::milliseconds deadline, Done done);
    void remove(Done done);

    // To standby; also of one that is there. Error: wrong_state; or why it runs on.
    void park(Done done);

    // In standby it is woken, and a park or wake that is under way is waited for. Error:
    // wrong_state.
    void when_running(Done done);
    bool is_parking_or_waking() const;

    // The other end of the returned socket is with the shim. Wakes it from standby. Error:
    // wrong_state, unreachable, or why it could not be woken.
    void exec(const wire::ExecRequest& request, std::function<void(Result<Fd>)> done);
    Result<Fd> open_console() const;

    // After a restart of workdird: takes over a unit that runs.
    Result<void> adopt(const pid1::UnitState& unit);
    // After a restart of workdird: the unit has ended meanwhile. `unit` tells how, where PID 1
    // knows.
    void ended_while_away(const pid1::UnitState& unit);

    const store::SandboxRow& row() const noexcept { return row_; }
    const std::string& id() const noexcept { return row_.id; }
    model::State state() const noexcept { return row_.state; }
    std::string unit() const;

private:
    struct Boot;
    struct Park;

    void begin_boot(BootQueue::Place place);
    Result<void> prepare_boot();
    Result<void> prepare_disk();
    image::Shape shape() const;
    void choose_path();
    Result<void> boot_cold_instead(const std::string& why);
    Result<void> start_machine();
    void launch_when_possible();
    Result<void> launch();
    Result<control::Launch> describe_launch(std::vector<Fd>& fds);
    void phase(model::Phase phase);
    void on_ready(const control::Ready& ready);
    void on_gone(const control::Ended& ended);
    void fail_boot(Error error);
    void end_boot(Error error); // after the machine has gone
    void make_machine();
    Result<void> begin_park();
    Result<void> guard_park();
    void adopt_park();
    void on_hello(const control::Hello& hello);
    void on_snapshotted(const control::Snapshotted& snapshotted);
    void on_snapshot_failed(const std::string& why);
    void on_parked_machine_gone();
    void end_park(Result<void> sealed);
    Result<void> choose_wake();
    bool has_standby() const;
    void discard_standby();
    void answer_waiting(const Result<void>& result);
    void on_activity(std::uint32_t sessions);
    void watch_idle();
    Result<Fd> open_session(const wire::ExecRequest& request);
    void set_state(model::State state);
    void save();
    void record_end(model::End end);
    void purge();
    void end_purge(Result<void> removed);
    void finish_stops(const Result<void>& result);
    Result<void> guard_adopted_boot();

    Context& context_;
    store::SandboxRow row_;
    Observer observer_;
    std::unique_ptr<Boot> boot_;
    event::Timer adopted_guard_; // of a boot whose beginning another workdird has seen
    std::unique_ptr<Machine> machine_;
    std::unique_ptr<Park> park_;
    std::uint32_t sessions_ = 0;
    unsigned failed_parks_ = 0; // of this unit
    event::Timer idle_;
    std::vector<Done> waiting_; // for it to run
    std::vector<Done> stopping_;
    std::vector<Done> removing_;
    bool purging_ = false;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

std::uint64_t realtime_us();
std::uint64_t monotonic_us();

} // namespace wd::sandbox
