#pragma once
// Starts a program: no shell, a clean signal mask and default signal actions, stdin from /dev/null.

#include "util/fd.hpp"

#include <string>
#include <vector>

#include <sys/types.h>

namespace wd {

// argv[0] is an absolute path; the environment is PATH and LANG alone. stdout and stderr go to
// `output` where it is open, else to this process's stderr. The caller reaps the child.
// Error: unsupported when the program is not there.
Result<pid_t> spawn(const std::vector<std::string>& argv, int output = -1);

} // namespace wd
