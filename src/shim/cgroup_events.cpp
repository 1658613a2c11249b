#include "shim/cgroup_events.hpp"

#include "util/file.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

namespace wd::shim {
namespace {

constexpr std::size_t kMaxFile = 256 * 1024;

// v1 says "no limit" as a number of nearly 2^63, rounded down to a page.
constexpr std::uint64_t kNoLimit = 1ull << 62;

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(separator), text.size());
        parts.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return parts;
}

bool lists(std::string_view comma_separated, std::string_view word) {
    const auto words = split(comma_separated, ',');
    return std::find(words.begin(), words.end(), word) != words.end();
}

std::optional<std::uint64_t> number(std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

// The path of this process in the hierarchy of `controller`, or in the unified one when empty.
std::optional<std::string_view> own_path(std::string_view cgroup, std::string_view controller) {
    for (const std::string_view line : split(cgroup, '\n')) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first == line.npos ? first : first + 1);
        if (second == line.npos) {
            continue;
        }
        const std::string_view controllers = line.substr(first + 1, second - first - 1);
        if (controller.empty() ? controllers.empty() : lists(controllers, controller)) {
            return line.substr(second + 1);
        }
    }
    return std::nullopt;
}

// The folder of `path` of that hierarchy: mount point, and the path without the mount's root.
std::filesystem::path mounted_at(std::string_view mountinfo, std::string_view controller,
                                 std::string_view path) {
    for (const std::string_view line : split(mountinfo, '\n')) {
        // "36 35 98:0 /root /mount/point rw,… shared:1 - type source super,options"
        const std::size_t dash = line.find(" - ");
        if (dash == line.npos) {
            continue;
        }
        const auto front = split(line.substr(0, dash), ' ');
        const auto back = split(line.substr(dash + 3), ' ');
        if (front.size() < 5 || back.size() < 3 ||
            back[0] != (controller.empty() ? "cgroup2" : "cgroup") ||
            (!controller.empty() && !lists(back[2], controller))) {
            continue;
        }
        const std::string_view root = front[3];
        std::string_view below = path;
        if (root != "/" && below.starts_with(root)) {
            below.remove_prefix(root.size());
        }
        return std::filesystem::path(front[4]) / below.substr(below.starts_with('/') ? 1 : 0);
    }
    return {};
}

std::string content(const std::filesystem::path& folder, const char* name) {
    auto text = read_file(folder / name, kMaxFile);
    return text ? *text : std::string();
}

std::uint64_t limit_of(std::string_view text) {
    const auto value = number(text); // "max" is no number
    return value && *value < kNoLimit ? *value : 0;
}

} // namespace

CgroupFolders find_cgroup(std::string_view cgroup, std::string_view mountinfo) {
    CgroupFolders folders;
    const auto folder = [&](std::string_view controller) -> std::filesystem::path {
        const auto path = own_path(cgroup, controller);
        return path ? mounted_at(mountinfo, controller, *path) : std::filesystem::path();
    };
    const std::filesystem::path unified = folder("");
    folders.memory = folder("memory");
    if (folders.memory.empty()) {
        folders.memory = unified;
        folders.memory_v2 = true;
    }
    folders.pids = folder("pids");
    if (folders.pids.empty()) {
        folders.pids = unified;
    }
    return folders;
}

std::optional<std::uint64_t> flat_value(std::string_view text, std::string_view name) {
    for (const std::string_view line : split(text, '\n')) {
        if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == ' ') {
            return number(line.substr(name.size() + 1));
        }
    }
    return std::nullopt;
}

CgroupEvents read_cgroup_events(const CgroupFolders& folders) {
    CgroupEvents events;
    if (!folders.memory.empty() && folders.memory_v2) {
        const std::string counts = content(folders.memory, "memory.events");
        events.oom_kills = flat_value(counts, "oom_kill").value_or(0);
        events.limit_hits = flat_value(counts, "oom").value_or(0);
        events.memory_limit = limit_of(content(folders.memory, "memory.max"));
        events.memory_peak = number(content(folders.memory, "memory.peak")).value_or(0); // >= 5.19
    } else if (!folders.memory.empty()) {
        events.oom_kills =
            flat_value(content(folders.memory, "memory.oom_control"), "oom_kill").value_or(0);
        events.limit_hits = number(content(folders.memory, "memory.failcnt")).value_or(0);
        events.memory_limit = limit_of(content(folders.memory, "memory.limit_in_bytes"));
        events.memory_peak =
            number(content(folders.memory, "memory.max_usage_in_bytes")).value_or(0);
    }
    if (!folders.pids.empty()) {
        events.pids_refused = flat_value(content(folders.pids, "pids.events"), "max").value_or(0);
        events.pids_limit = limit_of(content(folders.pids, "pids.max"));
    }
    return events;
}

CgroupEvents read_own_cgroup_events() {
    auto cgroup = read_file("/proc/self/cgroup", kMaxFile);
    auto mountinfo = read_file("/proc/self/mountinfo", kMaxFile);
    if (!cgroup || !mountinfo) {
        return {};
    }
    return read_cgroup_events(find_cgroup(*cgroup, *mountinfo));
}

} // namespace wd::shim
