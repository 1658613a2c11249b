#pragma once
// wd doctor, the daemon's side: what this host has and lacks, each finding with a remedy.

#include "bus/connection.hpp"
#include "sandbox/manager.hpp"

#include <functional>
#include <string>
#include <vector>

namespace wd::daemon {

struct Finding {
    enum class Status { ok, warning, failed };
    std::string check;
    Status status = Status::ok;
    std::string detail;
    std::string remedy; // empty when ok
};
std::string_view to_string(Finding::Status status);

// May boot the KVM probe first, so it can take its deadline once per boot of the host.
void examine(sandbox::Context& context, bus::Connection& bus,
             std::function<void(std::vector<Finding>)> done);

} // namespace wd::daemon
