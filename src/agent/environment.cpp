#include "agent/environment.hpp"

#include <algorithm>
#include <cerrno>
#include <numeric>

namespace wd::agent {
namespace {

std::string_view name_of(std::string_view entry) {
    return entry.substr(0, entry.find('='));
}

} // namespace

std::vector<std::string> merge_environment(const User& user, std::span<const std::string> setup,
                                           std::span<const std::string> request) {
    std::vector<std::string> all;
    all.push_back("PATH=" + std::string(kDefaultPath));
    all.push_back("HOME=" + user.home);
    if (!user.name.empty()) {
        all.push_back("USER=" + user.name);
        all.push_back("LOGNAME=" + user.name);
    }
    all.push_back("SHELL=" + user.shell);
    all.emplace_back("LANG=C.UTF-8");
    all.insert(all.end(), setup.begin(), setup.end());
    all.insert(all.end(), request.begin(), request.end());

    // Of each name the last one stays; by sorting, because a request may have 100 000 entries.
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const int names = name_of(all[a]).compare(name_of(all[b]));
        return names != 0 ? names < 0 : a < b;
    });
    std::vector<std::string> env;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const bool last =
            i + 1 == order.size() || name_of(all[order[i]]) != name_of(all[order[i + 1]]);
        if (last) {
            env.push_back(std::move(all[order[i]]));
        }
    }
    return env;
}

const std::string* find_variable(std::span<const std::string> env, std::string_view name) {
    for (const std::string& entry : env) {
        if (name_of(entry) == name) {
            return &entry;
        }
    }
    return nullptr;
}

std::vector<std::string> program_candidates(std::string_view program, std::string_view path) {
    std::vector<std::string> out;
    if (program.empty()) {
        return out;
    }
    if (program.find('/') != std::string_view::npos) {
        out.emplace_back(program);
        return out;
    }
    for (bool last = false; !last;) {
        const std::size_t end = path.find(':');
        last = end == std::string_view::npos;
        const std::string_view folder = path.substr(0, end);
        out.push_back((folder.empty() ? std::string(".") : std::string(folder)) + "/" +
                      std::string(program));
        path.remove_prefix(last ? path.size() : end + 1);
    }
    return out;
}

bool is_variable(std::string_view entry) {
    const std::size_t equals = entry.find('=');
    return equals != std::string_view::npos && equals > 0 &&
           entry.find('\0') == std::string_view::npos;
}

Outcome<void> check_request(const wire::ExecRequest& request) {
    constexpr auto npos = std::string::npos;
    if (request.argv.empty()) {
        return failure(FailureKind::other, EINVAL, "no command given");
    }
    for (std::size_t i = 0; i < request.argv.size(); ++i) {
        if (request.argv[i].size() > wire::kMaxArgument) {
            return failure(FailureKind::limit, E2BIG,
                           "argument " + std::to_string(i) + " has " +
                               std::to_string(request.argv[i].size()) +
                               " bytes; Linux takes at most " + std::to_string(wire::kMaxArgument) +
                               " in one (pass it through stdin or a file)");
        }
        if (request.argv[i].find('\0') != npos) {
            return failure(FailureKind::other, EINVAL,
                           "argument " + std::to_string(i) + " holds a NUL byte");
        }
    }
    for (const std::string& entry : request.env) {
        if (!is_variable(entry)) {
            return failure(FailureKind::other, EINVAL,
                           "an environment entry is not of the form NAME=VALUE");
        }
        if (entry.size() > wire::kMaxArgument) {
            return failure(FailureKind::limit, E2BIG,
                           "an environment entry has " + std::to_string(entry.size()) +
                               " bytes; Linux takes at most " + std::to_string(wire::kMaxArgument));
        }
    }
    if (request.cwd.find('\0') != npos || request.user.find('\0') != npos) {
        return failure(FailureKind::other, EINVAL, "a NUL byte in the folder or user");
    }
    return {};
}

} // namespace wd::agent
