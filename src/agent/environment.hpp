#pragma once
// The environment of a command, and how its program is found. Pure.

#include "agent/user_db.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wd::agent {

// Debian's default for root, which is right for everyone in a sandbox.
inline constexpr std::string_view kDefaultPath =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

// Defaults (PATH, HOME, USER, LOGNAME, SHELL, LANG) < `setup` < `request`, all NAME=VALUE. One
// entry a name.
std::vector<std::string> merge_environment(const User& user, std::span<const std::string> setup,
                                           std::span<const std::string> request);

// nullptr: not set.
const std::string* find_variable(std::span<const std::string> env, std::string_view name);

// What to try for a program: itself when it has a slash, else in each folder of `path` (an empty
// one is the working directory, as in execvp(3)). Empty for an empty name.
std::vector<std::string> program_candidates(std::string_view program, std::string_view path);

// NAME=VALUE with a name, and no NUL.
bool is_variable(std::string_view entry);

// What of a request can be said without looking at the file system.
Outcome<void> check_request(const wire::ExecRequest& request);

} // namespace wd::agent
