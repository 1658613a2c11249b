#include "cli/job.hpp"

#include "event/sources.hpp"

#include <array>
#include <cerrno>
#include <csignal>

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace wd::cli {
namespace {

Result<Fd> interrupt_fd() {
    if (auto blocked = event::block_signals({SIGINT, SIGTERM}); !blocked) {
        return fail(std::move(blocked).error());
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    Fd fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!fd) {
        return fail_errno(errno, "watch signals");
    }
    return fd;
}

} // namespace

Result<void> JobWatch::subscribe() {
    for (const std::string& match :
         {fmt::format("type='signal',sender='{}',path_namespace='/dev/workdir1/job',interface='org."
                      "freedesktop.DBus.Properties',member='PropertiesChanged'",
                      kBusName),
          fmt::format("type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop."
                      "DBus',member='NameOwnerChanged',arg0='{}'",
                      kBusName)}) {
        auto done = bus_.on_signal(match, [this](const Signal& signal) {
            changed_ = changed_ || signal.member == "NameOwnerChanged" || signal.path == job_;
        });
        if (!done) {
            return done;
        }
    }
    return {};
}

Result<JobWatch::End> JobWatch::run(const std::string& path) {
    job_ = path;
    const Call job{.path = path, .interface = kJob};
    auto interrupts = interrupt_fd();
    if (!interrupts) {
        return fail(std::move(interrupts).error());
    }
    bool cancelling = false;
    for (;;) {
        if (changed_) {
            changed_ = false;
            auto properties = bus_.properties(job);
            if (!properties && properties.error().code != ErrorCode::unreachable) {
                return fail(std::move(properties).error());
            }
            if (!properties) {
                progress_.show("workdird is away; waiting for it to come back");
            } else if (const std::string state = text_of(*properties, "State");
                       state != "running") {
                progress_.clear();
                return End{state, text_of(*properties, "Status")};
            } else if (!cancelling) {
                show(*properties);
            }
        }
        if (auto processed = bus_.process(); !processed) {
            return fail(std::move(processed).error());
        }
        if (changed_) {
            continue;
        }
        std::array<pollfd, 2> fds{pollfd{bus_.fd(), bus_.events(), 0},
                                  pollfd{interrupts->get(), POLLIN, 0}};
        if (::poll(fds.data(), fds.size(), bus_.timeout_ms()) < 0 && errno != EINTR) {
            return fail_errno(errno, "wait for the job");
        }
        signalfd_siginfo info{};
        if (::read(interrupts->get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
            if (cancelling) {
                progress_.clear();
                return fail(ErrorCode::cancelled, "left; it may still be running");
            }
            cancelling = true;
            progress_.show("cancelling; ^C again leaves it");
            Call cancel = job;
            cancel.member = "Cancel";
            bus_.start(cancel, [this](const Result<Reply>&) { changed_ = true; });
        }
    }
}

void JobWatch::show(const Json& properties) {
    const std::string status = text_of(properties, "Status");
    if (progress_.active()) {
        progress_.show(fmt::format("[{:3}%] {}", number_of(properties, "Percent"), status));
    } else if (status != last_status_ && !status.empty()) {
        note(status);
    }
    last_status_ = status;
}

} // namespace wd::cli
