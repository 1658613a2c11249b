#include "agent/spawn.hpp"

#include "agent/child.hpp"
#include "agent/pipe.hpp"

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <linux/sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace wd::agent {
namespace {

// The credit window: a whole one fits into the pipe, so stdin seldom has to be kept here, and a
// command can write that much between two turns of ours.
constexpr int kPipeSize = static_cast<int>(wire::kWindow);

// fork(2) straight into a control group, clone3(2). glibc has no wrapper; like fork it shares
// nothing, and pid 1 has one thread, so no lock can be held in the child.
pid_t fork_into(int cgroup) {
    clone_args args{};
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = SIGCHLD;
    args.cgroup = static_cast<std::uint64_t>(cgroup);
    return static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
}

void set_nonblocking(const Fd& fd) {
    ::fcntl(fd.get(), F_SETFL, O_NONBLOCK | ::fcntl(fd.get(), F_GETFL));
}

} // namespace

Outcome<Spawned> spawn(const wire::ExecRequest& request, std::span<const std::string> setup_env,
                       const Cgroup& cgroup) {
    auto in = Pipe::create(kPipeSize);
    auto out = Pipe::create(kPipeSize);
    auto err = Pipe::create(kPipeSize);
    auto status = Pipe::create(kPipeSize);
    for (auto* const pipe : {&in, &out, &err, &status}) {
        if (!*pipe) {
            return tl::unexpected(std::move(pipe->error()));
        }
    }
    const pid_t pid = fork_into(cgroup.folder());
    if (pid < 0) {
        return failure_errno(errno, errno == EAGAIN ? "start a process (too many in the sandbox)"
                                                    : "start a process");
    }
    if (pid == 0) {
        run_child({.request = request,
                   .setup_env = setup_env,
                   .in = in->read.get(),
                   .out = out->write.get(),
                   .err = err->write.get(),
                   .status = status->write.get()});
    }
    for (const Fd* const ours : {&in->write, &out->read, &err->read, &status->read}) {
        set_nonblocking(*ours);
    }
    return Spawned{.pid = pid,
                   .in = std::move(in->write),
                   .out = std::move(out->read),
                   .err = std::move(err->read),
                   .status = std::move(status->read)};
}

} // namespace wd::agent
