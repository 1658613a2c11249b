// wd logs: the console log, through the fd that the daemon opened.

#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/verbs.hpp"

#include "model/enums.hpp"

#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::cli {
namespace {

// Where the file may be read through the fd but not watched (inotify asks for read permission on
// the file itself, which belongs to root), it is looked at this often.
constexpr int kLookAgainMs = 250;

class Follower {
public:
    Follower(Fd log, bool for_terminal) : log_(std::move(log)), for_terminal_(for_terminal) {}

    // Prints what is there. pread: the offset of the fd may be shared with others.
    Result<void> drain() {
        struct stat info {};
        if (::fstat(log_.get(), &info) == 0 && info.st_size < offset_) {
            offset_ = 0; // truncated
            note("the log was truncated");
        }
        std::array<char, 65536> buffer;
        for (;;) {
            const ssize_t n = ::pread(log_.get(), buffer.data(), buffer.size(), offset_);
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n < 0) {
                return fail_errno(errno, "read the log");
            }
            if (n == 0) {
                return {};
            }
            offset_ += n;
            const std::string_view bytes(buffer.data(), static_cast<std::size_t>(n));
            auto written = for_terminal_ ? write_all(STDOUT_FILENO, filter_.feed(bytes))
                                         : write_all(STDOUT_FILENO, bytes);
            if (!written) {
                return fail(std::move(written).error().context("write to standard output"));
            }
        }
    }

    Fd watch() const {
        Fd inotify(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
        const std::string path = fmt::format("/proc/self/fd/{}", log_.get());
        if (inotify && ::inotify_add_watch(inotify.get(), path.c_str(), IN_MODIFY) < 0) {
            inotify.reset();
        }
        return inotify;
    }

private:
    Fd log_;
    bool for_terminal_;
    TerminalFilter filter_;
    off_t offset_ = 0;
};

bool is_live(const Json& state) {
    const auto known = state.is_string()
                           ? model::from_string<model::State>(state.get<std::string>())
                           : std::nullopt;
    return known && model::is_live(*known);
}

// Until the sandbox is not live any more. A workdird that goes away and comes back is waited for:
// the sandbox goes on meanwhile.
Result<int> follow(Bus& bus, const std::string& path, Follower& follower) {
    const Call object{.path = path, .interface = kSandbox};
    bool ask = true;
    const auto again = [&](const Signal&) { ask = true; };
    for (const std::string& match :
         {fmt::format("type='signal',sender='{}',path='{}',interface='org.freedesktop.DBus."
                      "Properties',member='PropertiesChanged'",
                      kBusName, path),
          fmt::format("type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop."
                      "DBus',member='NameOwnerChanged',arg0='{}'",
                      kBusName)}) {
        if (auto done = bus.on_signal(match, again); !done) {
            return fail(std::move(done).error());
        }
    }
    const Fd inotify = follower.watch();
    for (bool live = true; live;) {
        if (ask) {
            ask = false;
            // Gone altogether is an end too; only an absent daemon is waited for.
            const auto state = bus.property(object, "State");
            live = state ? is_live(*state) : state.error().code == ErrorCode::unreachable;
        }
        if (auto drained = follower.drain(); !drained) {
            return fail(std::move(drained).error());
        }
        if (auto done = bus.process(); !done) {
            return fail(std::move(done).error());
        }
        if (!live || ask) {
            continue;
        }
        std::array<pollfd, 2> fds{pollfd{bus.fd(), bus.events(), 0},
                                  pollfd{inotify.get(), POLLIN, 0}};
        const int bus_timeout = bus.timeout_ms();
        const int look = inotify ? -1 : kLookAgainMs;
        const int timeout = bus_timeout < 0 ? look
                            : look < 0      ? bus_timeout
                                            : std::min(look, bus_timeout);
        if (::poll(fds.data(), fds.size(), timeout) < 0 && errno != EINTR) {
            return fail_errno(errno, "wait for the log");
        }
        std::array<char, 4096> events;
        while (inotify && ::read(inotify.get(), events.data(), events.size()) > 0) {
        }
    }
    if (auto drained = follower.drain(); !drained) {
        return fail(std::move(drained).error());
    }
    return 0;
}

} // namespace

Result<int> run_logs(const Words& words) {
    std::string id;
    bool follow_it = false;
    Args args("logs", "[OPTIONS] ID", "Print the console log of a sandbox.",
              "On a terminal, control characters in it are shown, not obeyed.");
    args.positional("ID", id);
    args.flag("-f,--follow", follow_it, "go on until the sandbox ends");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    auto path = sandbox_path(*bus, id);
    if (!path) {
        return fail(std::move(path).error());
    }
    auto reply =
        bus->call({.path = *path, .interface = kSandbox, .member = "OpenConsole", .arguments = {}});
    if (!reply) {
        return fail(no_such_sandbox(std::move(reply).error(), id));
    }
    if (reply->fds.empty()) {
        return fail(ErrorCode::internal, "workdird sent no log");
    }
    Follower follower(std::move(reply->fds[0]), is_terminal(STDOUT_FILENO));
    if (follow_it) {
        return follow(*bus, *path, follower);
    }
    return follower.drain().map([] { return 0; });
}

} // namespace wd::cli
