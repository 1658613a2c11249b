#pragma once
// Notifier: sd_notify(3) that never waits. PID 1 may be slow to read (it reloads, or is traced),
// and sd_notify() would hold up every session of the sandbox until it does.

#include "util/fd.hpp"

#include <string>
#include <string_view>

namespace wd::shim {

class Notifier {
public:
    // Takes NOTIFY_SOCKET from the environment; without it nothing is ever sent.
    Notifier();

    // False: there is no room now, try again later.
    bool send(std::string_view state);

private:
    std::string address_;
    Fd socket_;
};

} // namespace wd::shim
