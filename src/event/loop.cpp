#include "event/loop.hpp"

namespace wd::event {

Result<Loop> Loop::create() {
    sd_event* event = nullptr;
    if (const int r = sd_event_new(&event); r < 0) {
        return fail_errno(-r, "create the event loop");
    }
    return Loop(event);
}

Result<int> Loop::run() {
    const int r = sd_event_loop(event_.get());
    if (r < 0) {
        return fail_errno(-r, "run the event loop");
    }
    return r;
}

void Loop::exit(int code) {
    (void)sd_event_exit(event_.get(), code);
}

Result<void> Loop::enable_watchdog() {
    if (const int r = sd_event_set_watchdog(event_.get(), 1); r < 0) {
        return fail_errno(-r, "enable the watchdog");
    }
    return {};
}

} // namespace wd::event
