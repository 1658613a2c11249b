#pragma once
// Starts a command. What may block on the guest's file systems or fail for reasons of the command
// (user, folder, program) happens in the child, so a hanging mount holds up nobody else.

#include "agent/cgroup.hpp"
#include "agent/outcome.hpp"
#include "util/fd.hpp"

#include <span>
#include <string>

#include <sys/types.h>

namespace wd::agent {

struct Spawned {
    pid_t pid = -1; // leader of its own session and process group
    Fd in;          // our ends of its stdio; not blocking
    Fd out;
    Fd err;
    // End of file: the program runs. Bytes before that: an encoded wire::Failure, and it does not.
    Fd status;
};

Outcome<Spawned> spawn(const wire::ExecRequest& request, std::span<const std::string> setup_env,
                       const Cgroup& cgroup);

} // namespace wd::agent
