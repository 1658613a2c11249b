#include "util/spawn.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>

#include <fcntl.h>
#include <unistd.h>

namespace wd {

Result<pid_t> spawn(const std::vector<std::string>& argv, int output) {
    std::vector<char*> raw;
    for (const std::string& argument : argv) {
        raw.push_back(const_cast<char*>(argument.c_str()));
    }
    raw.push_back(nullptr);
    char path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    char lang[] = "LANG=C.UTF-8";
    char* environment[] = {path, lang, nullptr};

    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_init(&actions);
    sigset_t none;
    sigset_t all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    const int out = output >= 0 ? output : STDERR_FILENO;
    ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);

    pid_t pid = -1;
    const int r =
        ::posix_spawn(&pid, argv.at(0).c_str(), &actions, &attributes, raw.data(), environment);
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (r != 0) {
        return fail_errno(r, fmt::format("start {}", argv.at(0)), ErrorCode::unsupported);
    }
    return pid;
}

} // namespace wd
