#pragma once
// Control groups of the guest (cgroup v2): one for each exec, so that all of its processes can be
// found, counted and ended, whatever they do.

#include "agent/poller.hpp"

#include <cstdint>
#include <memory>
#include <vector>

#include <sys/types.h>

namespace wd::agent {

class Cgroup {
public:
    Cgroup() = default;
    Cgroup(Cgroup&&) noexcept = default;
    Cgroup& operator=(Cgroup&&) noexcept = default;

    // For clone3(CLONE_INTO_CGROUP).
    int folder() const { return folder_.get(); }
    explicit operator bool() const { return static_cast<bool>(folder_); }

    // Any process, in a group below too.
    bool populated() const;
    std::uint64_t cpu_us() const;     // user + system
    std::uint64_t peak_bytes() const; // 0 where the kernel does not say (before 5.19)

    // To every process in it and below. Not atomic: for signals that ask, not for SIGKILL.
    void signal_all(int signal) const;
    // SIGKILL to all at once, also to what is being forked (cgroup.kill, Linux 5.14).
    void kill_all() const;

    // A descriptor that gets EPOLLPRI when populated() changes.
    Outcome<Fd> open_events() const;

private:
    friend class CgroupTree;
    Cgroup(std::string name, Fd folder) : name_(std::move(name)), folder_(std::move(folder)) {}

    std::string name_; // under the tree's folder
    Fd folder_;
};

// /sys/fs/cgroup/exec and what is in it. Also removes the groups that are no longer needed, as soon
// as the processes that stayed behind in them are gone.
class CgroupTree {
public:
    // cgroup2 is mounted at /sys/fs/cgroup.
    static Outcome<std::unique_ptr<CgroupTree>> create(Poller& poller);
    ~CgroupTree();

    Outcome<Cgroup> make();

    // All processes of all groups stop where they are, until thaw(). Returns when they have, or
    // after a second: one that waits for a disk stops when that answers, before it runs on.
    void freeze();
    void thaw();

    // Takes a group whose exec is over.
    void give_up(Cgroup cgroup);

private:
    class Lingering;
    explicit CgroupTree(Poller& poller);
    bool remove(const std::string& name);

    Poller& poller_;
    Fd folder_;
    std::string pids_max_;
    std::uint64_t next_ = 1;
    std::vector<std::unique_ptr<Lingering>> lingering_;
};

} // namespace wd::agent
