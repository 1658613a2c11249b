#pragma once
// The forked child, until it becomes the command.

#include "wire/message.hpp"

#include <span>
#include <string>

namespace wd::agent {

struct ChildPlan {
    const wire::ExecRequest& request;
    std::span<const std::string> setup_env;
    int in;
    int out;
    int err;
    int status; // CLOEXEC; takes an encoded wire::Failure
};

[[noreturn]] void run_child(const ChildPlan& plan);

} // namespace wd::agent
