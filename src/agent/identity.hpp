#pragma once
// What makes this machine itself: clock, random pool, names. Done before any process runs.

#include "agent/outcome.hpp"

#include <cstdint>

namespace wd::agent {

// The wall clock becomes setup.realtime_ns plus what passed since `received_ns` (boot_ns).
Outcome<void> set_clock(const wire::Setup& setup, std::uint64_t received_ns);

// Random pool, loopback, and with `names` host name, /etc/hostname, /etc/hosts and /etc/machine-id.
// On the final root.
Outcome<void> set_identity(const wire::Setup& setup, bool names);

// Pure: /etc/hosts with `hostname` at 127.0.1.1, the rest of it unchanged.
std::string hosts_with(std::string_view hosts, std::string_view hostname);

bool is_hostname(std::string_view text);
bool is_machine_id(std::string_view text);

} // namespace wd::agent
