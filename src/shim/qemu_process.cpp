#include "shim/qemu_process.hpp"

#include "control/socket.hpp"
#include "shim/spawn_guard.hpp"
#include "util/log.hpp"
#include "util/text.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace wd::shim {
namespace {

// QEMU says a few lines in its life; a broken-into one shall not fill the journal.
constexpr unsigned kMaxLoggedLines = 200;

struct Pipe {
    Fd read;
    Fd write;
};

Result<Pipe> make_pipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) < 0) {
        return fail_errno(errno, "create a pipe");
    }
    return Pipe{Fd(fds[0]), Fd(fds[1])};
}

// Everything between fork and exec: system calls only.
struct ChildSetup {
    char* const* argv;
    char* const* environment;
    std::span<const int> inherited;
    const SpawnGuard* guard;
    int null_fd;
    int stderr_fd;
    int report_fd; // CLOEXEC: closes without a word when exec succeeds
    pid_t parent;
};

// What the child says on report_fd, a SOCK_SEQPACKET: an errno and then the end, or the listener of
// its guard.
[[noreturn]] void give_up(int report_fd) {
    const int error = errno;
    const ssize_t n = ::write(report_fd, &error, sizeof error);
    ::_exit(n == sizeof error ? 127 : 126);
}

bool send_listener(int report_fd, int listener) {
    char byte = 0;
    iovec data{.iov_base = &byte, .iov_len = 1};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &listener, sizeof listener);
    return ::sendmsg(report_fd, &message, MSG_NOSIGNAL) == 1;
}

// When the unit runs out of memory the kernel shall take QEMU, so that the shim can tell why: the
// score of a process may be raised without privilege (proc(5)). The shim itself is not dumpable,
// and what belongs to such a process in /proc is root's, so the child becomes dumpable first.
void prefer_for_oom() {
    constexpr char kScore[] = "500";
    (void)::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    const int fd = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!::write(fd, kScore, sizeof kScore - 1);
        ::close(fd);
    }
}

[[noreturn]] void run_child(const ChildSetup& setup) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) {
        give_up(setup.report_fd);
    }
    if (::getppid() != setup.parent) {
        ::_exit(126); // the parent went before the line above
    }
    prefer_for_oom();
    // SIGTERM, SIGINT and SIGHUP stay blocked: `systemctl stop` may signal the whole cgroup, and
    // the guest is to be shut down in order by the shim. SIGKILL always works.
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGHUP);
    ::signal(SIGPIPE, SIG_DFL);
    if (::sigprocmask(SIG_SETMASK, &blocked, nullptr) < 0 || ::dup2(setup.null_fd, 0) < 0 ||
        ::dup2(setup.stderr_fd, 1) < 0 || ::dup2(setup.stderr_fd, 2) < 0) {
        give_up(setup.report_fd);
    }
    for (const int fd : setup.inherited) {
        if (::fcntl(fd, F_SETFD, 0) < 0) {
            give_up(setup.report_fd);
        }
    }
    // Last, as from here on the only exec is that of QEMU, when the parent lets it.
    const int listener = setup.guard->install();
    if (listener < 0 || !send_listener(setup.report_fd, listener)) {
        give_up(setup.report_fd);
    }
    ::execve(setup.argv[0], setup.argv, setup.environment);
    give_up(setup.report_fd);
}

// As execve(2) wants them.
std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (const std::string& text : texts) {
        out.push_back(const_cast<char*>(text.c_str()));
    }
    out.push_back(nullptr);
    return out;
}

// Sees the child through its exec, for as long as that takes. Error: what the child could not do.
Result<void> await_exec(int report, const std::string& program) {
    for (;;) {
        auto packet = control::receive_packet(report, sizeof(int));
        if (!packet && packet.error().code == ErrorCode::unreachable &&
            packet.error().errnum == 0) {
            return {}; // the end: QEMU runs, or the child was killed, which its exit will tell
        }
        if (!packet) {
            return fail(std::move(packet).error());
        }
        if (packet->fds.size() == 1) {
            if (auto done = SpawnGuard::let_one_exec(std::move(packet->fds[0])); !done) {
                return done;
            }
        } else if (int error = 0; packet->text.size() == sizeof error) {
            std::memcpy(&error, packet->text.data(), sizeof error);
            return fail_errno(error, fmt::format("start {}", program), ErrorCode::start_failed);
        }
    }
}

} // namespace

Result<std::unique_ptr<QemuProcess>> QemuProcess::spawn(const event::Loop& loop,
                                                        const std::vector<std::string>& argv,
                                                        const std::vector<std::string>& environment,
                                                        std::span<const int> inherited,
                                                        OnExit on_exit) {
    std::vector<std::string> settings{"PATH=/usr/bin:/bin", "LC_ALL=C"};
    settings.insert(settings.end(), environment.begin(), environment.end());
    const std::vector<char*> words = pointers(argv);
    const std::vector<char*> setting_words = pointers(settings);
    const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null) {
        return fail_errno(errno, "open /dev/null");
    }
    auto guard = SpawnGuard::create();
    auto report = socket_pair(SOCK_SEQPACKET);
    auto output = make_pipe();
    if (!guard || !report || !output) {
        return fail(!guard    ? std::move(guard).error()
                    : !report ? std::move(report).error()
                              : std::move(output).error());
    }
    const ChildSetup setup{.argv = words.data(),
                           .environment = setting_words.data(),
                           .inherited = inherited,
                           .guard = &*guard,
                           .null_fd = null.get(),
                           .stderr_fd = output->write.get(),
                           .report_fd = report->second.get(),
                           .parent = ::getpid()};
    const pid_t pid = ::fork();
    if (pid < 0) {
        return fail_errno(errno, "fork", ErrorCode::start_failed);
    }
    if (pid == 0) {
        run_child(setup);
    }
    report->second.reset();
    output->write.reset();
    if (auto done = await_exec(report->first.get(), argv[0]); !done) {
        (void)::kill(pid, SIGKILL);
        (void)::waitpid(pid, nullptr, 0);
        return fail(std::move(done).error());
    }

    std::unique_ptr<QemuProcess> process(new QemuProcess);
    process->stderr_ = std::move(output->read);
    auto ref = PidRef::open(pid);
    if (!ref) {
        return fail(std::move(ref).error());
    }
    process->pid_ = std::move(*ref);
    if (auto done = set_nonblocking(process->stderr_.get()); !done) {
        return fail(std::move(done).error());
    }
    QemuProcess* const self = process.get();
    auto io = event::Io::create(loop, process->stderr_.get(), EPOLLIN,
                                [self](std::uint32_t) { self->on_stderr(); });
    auto child =
        event::Child::create(loop, pid, [self, done = std::move(on_exit)](const siginfo_t& info) {
            self->on_stderr();
            if (const std::string_view rest = self->lines_.rest(); !rest.empty()) {
                self->log_line(rest);
            }
            self->pid_ = PidRef();
            done(info);
        });
    if (!io || !child) {
        return fail(!io ? std::move(io).error() : std::move(child).error());
    }
    process->stderr_io_ = std::move(*io);
    process->child_ = std::move(*child);
    return process;
}

QemuProcess::~QemuProcess() {
    // The event source would leave a zombie, which ends with the shim, but a live QEMU must go.
    child_.reset();
    if (pid_) {
        (void)pid_.signal(SIGKILL);
        (void)::waitpid(pid_.pid(), nullptr, 0);
    }
}

void QemuProcess::kill() {
    if (pid_) {
        killed_ = true;
        if (auto done = pid_.signal(SIGKILL); !done) {
            log::error(done.error().message);
        }
    }
}

void QemuProcess::on_stderr() {
    char buffer[4096];
    for (int i = 0; i < 16; ++i) {
        const ssize_t n = ::read(stderr_.get(), buffer, sizeof buffer);
        if (n < 0 && errno == EAGAIN) {
            return;
        }
        if (n <= 0) {
            stderr_io_.reset();
            return;
        }
        lines_.feed({buffer, static_cast<std::size_t>(n)});
        while (const auto line = lines_.next()) {
            log_line(*line);
        }
    }
}

void QemuProcess::log_line(std::string_view line) {
    if (line.empty()) {
        return;
    }
    last_line_ = printable(line, 300);
    if (logged_ < kMaxLoggedLines) {
        log::warning("qemu: " + last_line_);
    } else if (logged_ == kMaxLoggedLines) {
        log::warning("qemu says too much; no more of it is logged");
    }
    ++logged_;
}

} // namespace wd::shim
