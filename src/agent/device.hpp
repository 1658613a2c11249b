#pragma once
// Devices that the kernel may still be finding when pid 1 starts.

#include "agent/outcome.hpp"
#include "util/fd.hpp"

#include <cstdint>
#include <string>

namespace wd::agent {

// Hears of new devices (kernel uevents, netlink(7) NETLINK_KOBJECT_UEVENT). Create it before the
// first look, so nothing falls in between.
class DeviceWatch {
public:
    DeviceWatch();
    // False once `deadline` (boot_ns) has passed. Without netlink it looks every 10 ms.
    bool wait(std::uint64_t deadline);

private:
    Fd socket_;
};

// The character device of the virtio-serial port of that name, e.g. "/dev/vport0p1"; not_found.
Outcome<std::string> find_port(std::string_view name);

} // namespace wd::agent
