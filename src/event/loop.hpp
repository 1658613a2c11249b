#pragma once
// Loop: RAII over sd-event. One loop, one thread; every callback of the program runs in it.

#include "util/result.hpp"

#include <memory>

#include <systemd/sd-event.h>

namespace wd::event {

class Loop {
public:
    static Result<Loop> create();

    // Runs until exit() and returns its code.
    Result<int> run();
    void exit(int code);

    // Arms sd-event's watchdog from WATCHDOG_USEC where systemd set it; a no-op elsewhere.
    Result<void> enable_watchdog();

    sd_event* get() const noexcept { return event_.get(); } // borrowed

private:
    struct Unref {
        void operator()(sd_event* event) const noexcept { sd_event_unref(event); }
    };
    explicit Loop(sd_event* event) noexcept : event_(event) {}
    std::unique_ptr<sd_event, Unref> event_;
};

} // namespace wd::event
