// workdird: see workdird(8). Order of the start: block signals, loop, bus, state, reconcile with
// PID 1, export, take the name, READY=1.

#include "bus/connection.hpp"
#include "config/config.hpp"
#include "daemon/service/service.hpp"
#include "event/worker.hpp"
#include "sandbox/manager.hpp"
#include "util/log.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

namespace {

using namespace wd;

// EX_CONFIG of sysexits.h: the unit does not try again with the same file.
constexpr int kExitConfig = 78;

struct Options {
    std::string config = "/etc/workdir/workdird.toml";
    bool check_only = false;
};

int usage(std::FILE* out, int status) {
    fmt::print(out, "Usage: workdird [--config FILE] [--check-config] [--version]\n"
                    "The manager of workdir sandboxes; started by systemd. See workdird(8).\n");
    return status;
}

int failed(const Error& error, int status = EXIT_FAILURE) {
    log::error(error.message);
    sd_notifyf(0, "STATUS=%s", error.message.c_str());
    return status;
}

Result<int> serve(const config::Config& config) {
    auto loop = event::Loop::create();
    if (!loop) {
        return fail(std::move(loop).error());
    }
    const sandbox::Paths paths;
    if (auto done = paths.prepare(); !done) {
        return fail(std::move(done).error());
    }
    auto store = store::Store::open(paths.database());
    if (!store) {
        return fail(std::move(store).error());
    }
    auto worker = event::Worker::create(*loop);
    if (!worker) {
        return fail(std::move(worker).error());
    }
    auto bus = bus::Connection::open_system(*loop);
    if (!bus) {
        return fail(std::move(bus).error());
    }
    bus->on_lost([&](const Error& error) {
        log::error(error.message);
        loop->exit(EXIT_FAILURE);
    });
    auto units = pid1::Units::create(*loop, *bus);
    if (!units) {
        return fail(std::move(units).error());
    }
    image::ImageStore images(paths.images(), paths.recipes);
    sandbox::AccelProbe probe(*loop, **units, config, paths);
    sandbox::BootQueue queue(config.parallel_boots);
    sandbox::Goldens goldens(*loop, **worker, **units, images, queue, config, paths);
    auto service = daemon::Service::create(*bus, {.loop = *loop,
                                                  .worker = **worker,
                                                  .units = **units,
                                                  .store = *store,
                                                  .images = images,
                                                  .probe = probe,
                                                  .queue = queue,
                                                  .goldens = goldens,
                                                  .config = config,
                                                  .paths = paths});
    if (!service) {
        return fail(std::move(service).error());
    }
    const auto end = [&](const signalfd_siginfo&) { loop->exit(EXIT_SUCCESS); };
    auto on_term = event::Signal::create(*loop, SIGTERM, end);
    auto on_int = event::Signal::create(*loop, SIGINT, end);
    if (!on_term || !on_int) {
        return fail(ErrorCode::internal, "cannot watch SIGTERM and SIGINT");
    }
    if (auto done = loop->enable_watchdog(); !done) {
        return fail(std::move(done).error());
    }
    (*service)->start([&](const Result<void>& started) {
        if (!started) {
            log::error(started.error().message);
            loop->exit(EXIT_FAILURE);
            return;
        }
        sd_notify(0, "READY=1\nSTATUS=ready");
    });
    auto code = loop->run();
    sd_notify(0, "STOPPING=1");
    bus->flush();
    return code;
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--config") == 0 && i + 1 < argc) {
            options.config = argv[++i];
        } else if (std::strcmp(argv[i], "--check-config") == 0) {
            options.check_only = true;
        } else if (std::strcmp(argv[i], "--version") == 0) {
            fmt::print("workdird {}\n", WORKDIR_VERSION);
            return EXIT_SUCCESS;
        } else if (std::strcmp(argv[i], "--help") == 0) {
            return usage(stdout, EXIT_SUCCESS);
        } else {
            return usage(stderr, 2);
        }
    }
    const auto config = config::load(options.config, config::this_host());
    if (!config) {
        return failed(config.error(), kExitConfig);
    }
    if (options.check_only) {
        return EXIT_SUCCESS;
    }
    // SIGCHLD for sd_event_add_child(3); a closed pipe is an error of write(2), not a signal.
    std::signal(SIGPIPE, SIG_IGN);
    if (auto done = event::block_signals({SIGTERM, SIGINT, SIGCHLD}); !done) {
        return failed(done.error());
    }
    const auto code = serve(*config);
    return code ? *code : failed(code.error());
}
