#include "agent/child.hpp"

#include "agent/environment.hpp"
#include "agent/files.hpp"
#include "agent/user_db.hpp"

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::agent {
namespace {

constexpr std::size_t kLargestDatabase = 8 * 1024 * 1024;
constexpr const char* kDefaultFolder = "/workspace";

// What pid 1 has for itself and a command must not inherit.
Outcome<void> become_ordinary() {
    ::setsid();
    ::signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::umask(022);
    ::setpriority(PRIO_PROCESS, 0, 0);
    const sched_param plain{};
    ::sched_setscheduler(0, SCHED_OTHER, &plain);
    // Else the OOM killer would spare it, and take another.
    return write_control("/proc/self/oom_score_adj", "0");
}

Outcome<void> take_stdio(const ChildPlan& plan, const User& user) {
    const int fds[] = {plan.in, plan.out, plan.err};
    for (int i = 0; i < 3; ++i) {
        // The owner is changed so that another user too may open /dev/stdout.
        if (::fchown(fds[i], user.uid, user.gid) < 0 || ::dup2(fds[i], i) < 0) {
            return failure_errno(errno, "stdio");
        }
    }
    return {};
}

Outcome<void> become_user(const User& user) {
    if (::setgroups(user.groups.size(), user.groups.data()) < 0 ||
        ::setresgid(user.gid, user.gid, user.gid) < 0 ||
        ::setresuid(user.uid, user.uid, user.uid) < 0) {
        return failure_errno(errno, "become user " + std::to_string(user.uid));
    }
    return {};
}

Outcome<void> enter_folder(const std::string& wanted) {
    if (wanted.empty()) {
        return ::chdir(kDefaultFolder) == 0 || ::chdir("/") == 0
                   ? Outcome<void>()
                   : failure_errno(errno, "enter the folder /");
    }
    if (::chdir(wanted.c_str()) < 0) {
        return failure_errno(errno, "enter the folder " + quote(wanted));
    }
    return {};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> out;
    out.reserve(texts.size() + 1);
    for (const std::string& text : texts) {
        out.push_back(const_cast<char*>(text.c_str())); // execve(2) does not write to it
    }
    out.push_back(nullptr);
    return out;
}

// systemd's defaults: programs that use select(2) break above 1024. Not before everything is open:
// until exec the descriptors of pid 1 are here too.
void limit_files() {
    const rlimit files{.rlim_cur = 1024, .rlim_max = 524288};
    ::setrlimit(RLIMIT_NOFILE, &files);
}

// Returns only when it failed.
wire::Failure execute(const wire::ExecRequest& request, const std::vector<std::string>& env) {
    const std::string& program = request.argv.front();
    const std::string* const path = find_variable(env, "PATH");
    const auto argv = pointers(request.argv);
    const auto envp = pointers(env);
    wire::Failure worst{FailureKind::not_found, ENOENT, quote(program) + ": command not found"};
    for (const std::string& candidate :
         program_candidates(program, path ? std::string_view(*path).substr(5) : kDefaultPath)) {
        ::execve(candidate.c_str(), argv.data(), envp.data());
        const int errnum = errno;
        const auto told = static_cast<std::uint64_t>(errnum);
        if (errnum == ENOENT || errnum == ENOTDIR || errnum == ESTALE || errnum == ENODEV) {
            if (errnum == ENOENT && ::access(candidate.c_str(), F_OK) == 0) {
                return {FailureKind::not_found, told,
                        quote(candidate) + " is there, but its interpreter is not"};
            }
            if (program.find('/') != std::string::npos) {
                worst = {FailureKind::not_found, told, quote(program) + ": " + errno_text(errnum)};
            }
            continue;
        }
        if (errnum == EACCES) { // another folder of PATH may have one that runs
            worst = {FailureKind::not_executable, told,
                     quote(candidate) + ": " + errno_text(errnum)};
            continue;
        }
        const bool program_is_bad = errnum == ENOEXEC || errnum == EISDIR || errnum == ELIBBAD ||
                                    errnum == EINVAL || errnum == ELOOP || errnum == EPERM;
        return {program_is_bad ? FailureKind::not_executable : FailureKind::other, told,
                quote(candidate) + ": " + errno_text(errnum)};
    }
    return worst;
}

// Returns only when it failed.
wire::Failure prepare_and_execute(const ChildPlan& plan) {
    if (auto done = become_ordinary(); !done) {
        return done.error();
    }
    const auto passwd = read_small_file("/etc/passwd", kLargestDatabase);
    const auto group = read_small_file("/etc/group", kLargestDatabase);
    const auto user = find_user(plan.request.user, passwd ? *passwd : std::string(),
                                group ? *group : std::string());
    if (!user) {
        return user.error();
    }
    if (auto done = take_stdio(plan, *user); !done) {
        return done.error();
    }
    if (auto done = become_user(*user); !done) {
        return done.error();
    }
    if (auto done = enter_folder(plan.request.cwd); !done) {
        return done.error();
    }
    limit_files();
    return execute(plan.request, merge_environment(*user, plan.setup_env, plan.request.env));
}

} // namespace

void run_child(const ChildPlan& plan) {
    const wire::Bytes told = wire::encode(prepare_and_execute(plan));
    const ssize_t ignored = ::write(plan.status, told.data(), told.size());
    static_cast<void>(ignored);
    ::_exit(127);
}

} // namespace wd::agent
