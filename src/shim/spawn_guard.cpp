#include "shim/spawn_guard.hpp"

#include <cerrno>
#include <cstdint>
#include <memory>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace wd::shim {
namespace {

Error seccomp_error(int negative_errno, const char* what) {
    return errno_error(-negative_errno, what, ErrorCode::start_failed);
}

// The rules, in libseccomp's form.
int add_rules(scmp_filter_ctx filter) {
    const auto deny = [&](int call) {
        return seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), call, 0);
    };
    for (const int call : {SCMP_SYS(fork), SCMP_SYS(vfork), SCMP_SYS(execveat)}) {
        if (const int rc = deny(call); rc < 0) {
            return rc;
        }
    }
    const scmp_arg_cmp no_thread{
        .arg = 0, .op = SCMP_CMP_MASKED_EQ, .datum_a = CLONE_THREAD, .datum_b = 0};
    if (const int rc =
            seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1, &no_thread);
        rc < 0) {
        return rc;
    }
    // Its flags are behind a pointer, out of a filter's sight: the C library falls back to clone.
    if (const int rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
        rc < 0) {
        return rc;
    }
    return seccomp_rule_add(filter, SCMP_ACT_NOTIFY, SCMP_SYS(execve), 0);
}

} // namespace

Result<SpawnGuard> SpawnGuard::create() {
    const std::unique_ptr<void, void (*)(void*)> filter(seccomp_init(SCMP_ACT_ALLOW),
                                                        [](void* f) { seccomp_release(f); });
    if (!filter) {
        return fail(ErrorCode::start_failed, "libseccomp: out of memory");
    }
    if (const int rc = add_rules(filter.get()); rc < 0) {
        return fail(seccomp_error(rc, "libseccomp: add a rule"));
    }
    const Fd memory(::memfd_create("workdir-filter", MFD_CLOEXEC));
    if (!memory) {
        return fail_errno(errno, "memfd_create");
    }
    if (const int rc = seccomp_export_bpf(filter.get(), memory.get()); rc < 0) {
        return fail(seccomp_error(rc, "libseccomp: export the filter"));
    }
    struct stat info {};
    if (::fstat(memory.get(), &info) < 0) {
        return fail_errno(errno, "fstat");
    }
    SpawnGuard guard;
    guard.program_.resize(static_cast<std::size_t>(info.st_size));
    if (::pread(memory.get(), guard.program_.data(), guard.program_.size(), 0) != info.st_size) {
        return fail_errno(errno, "read the filter");
    }
    return guard;
}

int SpawnGuard::install() const noexcept {
    sock_fprog program{};
    program.len = static_cast<unsigned short>(program_.size() / sizeof(sock_filter));
    program.filter = // seccomp(2) only reads it
        const_cast<sock_filter*>(reinterpret_cast<const sock_filter*>(program_.data()));
    return static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                      SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

Result<void> SpawnGuard::let_one_exec(Fd listener) {
    pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
    while (::poll(&ready, 1, -1) < 0) {
        if (errno != EINTR) {
            return fail_errno(errno, "poll the seccomp listener", ErrorCode::start_failed);
        }
    }
    if ((ready.revents & POLLIN) == 0) {
        return {}; // hung up: nobody is under the filter any more
    }
    seccomp_notif call{};
    if (::ioctl(listener.get(), SECCOMP_IOCTL_NOTIF_RECV, &call) < 0) {
        return errno == ENOENT ? Result<void>() // the child was killed meanwhile
                               : fail_errno(errno, "seccomp: receive", ErrorCode::start_failed);
    }
    // The arguments are in the memory of the child, which is still our own code: nobody can change
    // them between this and their use.
    seccomp_notif_resp answer{};
    answer.id = call.id;
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    if (::ioctl(listener.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer) < 0 && errno != ENOENT) {
        return fail_errno(errno, "seccomp: answer", ErrorCode::start_failed);
    }
    return {};
}

} // namespace wd::shim
