// workdir-shim: main process of a sandbox's unit. workdird starts it with the control socket as
// standard input; it takes no arguments and opens no path of its own.

#include "event/loop.hpp"
#include "event/sources.hpp"
#include "shim/shim.hpp"
#include "util/log.hpp"

#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace {

constexpr uid_t kRoot = 0; // workdird

// An unused stdio slot would be taken by the next descriptor, and QEMU's are put there later.
void fill_stdio() {
    while (true) {
        const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0 || fd > 2) {
            if (fd > 2) {
                ::close(fd);
            }
            return;
        }
    }
}

wd::Result<int> run() {
    using namespace wd;
    // QEMU runs as the same user: it shall not be able to attach to us, or read our memory.
    (void)::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    ::signal(SIGPIPE, SIG_IGN);
    fill_stdio();
    if (auto done = event::block_signals({SIGTERM, SIGINT, SIGCHLD}); !done) {
        return fail(std::move(done).error());
    }
    Fd listener(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
    if (!listener) {
        return fail_errno(errno, "duplicate standard input");
    }
    auto loop = event::Loop::create();
    if (!loop) {
        return fail(std::move(loop).error());
    }
    if (auto done = loop->enable_watchdog(); !done) {
        return fail(std::move(done).error());
    }
    auto shim = shim::Shim::create(*loop, std::move(listener), kRoot);
    if (!shim) {
        return fail(std::move(shim).error());
    }
    return loop->run();
}

} // namespace

int main(int argc, char** argv) {
    if (argc > 1) {
        if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
            fmt::print("workdir-shim {}\n", WORKDIR_VERSION);
            return EXIT_SUCCESS;
        }
        fmt::print(stderr, "workdir-shim takes no arguments; workdird starts it.\n");
        return 2;
    }
    auto status = run();
    if (!status) {
        wd::log::error("workdir-shim: " + status.error().message);
        return EXIT_FAILURE;
    }
    return *status;
}
