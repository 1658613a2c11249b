// workdir-agent: pid 1 of a sandbox's guest.

#include "agent/agent.hpp"
#include "agent/clock.hpp"
#include "agent/console.hpp"
#include "agent/files.hpp"
#include "agent/root_fs.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>

#include <malloc.h>
#include <sched.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using namespace wd::agent;

constexpr std::uint64_t kPortDeadline = 10 * kSecond;

// Without the channel there is nobody to serve: the last console line says why, and QEMU ends.
[[noreturn]] void give_up(const wd::wire::Failure& why) {
    console("%s; the machine stops", why.message.c_str());
    ::reboot(RB_AUTOBOOT);
    for (;;) {
        ::pause();
    }
}

// Pid 1 stays reachable when commands take all memory, processor time or descriptors.
void protect_self() {
    static_cast<void>(write_control("/proc/self/oom_score_adj", "-1000"));
    ::setpriority(PRIO_PROCESS, 0, -10);
    // Does not push a command off the processor at its every write(2): that fills its pipe first,
    // and a stream takes a tenth of the context switches. When pid 1 runs, it has its full weight.
    const sched_param none{};
    ::sched_setscheduler(0, SCHED_BATCH, &none);
    const rlimit files{.rlim_cur = 65536, .rlim_max = 524288};
    ::setrlimit(RLIMIT_NOFILE, &files);
    // Large requests go back to the kernel when they are done with.
    ::mallopt(M_MMAP_THRESHOLD, 64 * 1024);
    ::mallopt(M_TRIM_THRESHOLD, 64 * 1024);
    ::umask(022);
}

wd::Fd child_signals() {
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    return wd::Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

} // namespace

int main() {
    const std::uint64_t start = boot_ns();
    if (::getpid() != 1) {
        std::fputs("workdir-agent is pid 1 of a sandbox's guest and does nothing elsewhere\n",
                   stderr);
        return 2;
    }
    console_init();
    if (auto done = mount_early(); !done) {
        give_up(done.error());
    }
    protect_self();
    auto device = Port::open_device(start + kPortDeadline);
    if (!device) {
        give_up(device.error());
    }
    auto poller = Poller::create();
    if (!poller) {
        give_up(poller.error());
    }
    Port port(*poller, std::move(*device));
    Agent(*poller, port, child_signals(), start).run();
}
