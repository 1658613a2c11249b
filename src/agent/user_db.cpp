#include "agent/user_db.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>

namespace wd::agent {
namespace {

// An id as in chown(2): -1 means "leave it", so it is no id.
std::optional<std::uint32_t> parse_id(std::string_view text) {
    std::uint32_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size() || text.empty() ||
        id == UINT32_MAX) {
        return std::nullopt;
    }
    return id;
}

std::string_view take(std::string_view& rest, char separator) {
    const std::size_t end = std::min(rest.find(separator), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
}

template <std::size_t N>
bool split(std::string_view line, std::array<std::string_view, N>& fields) {
    if (static_cast<std::size_t>(std::count(line.begin(), line.end(), ':')) != N - 1) {
        return false;
    }
    for (auto& field : fields) {
        field = take(line, ':');
    }
    return !fields[0].empty();
}

// By name first, so a user whose name is a number is found by it.
bool apply_passwd(std::string_view wanted, std::string_view passwd, bool by_name, User& user) {
    const auto id = parse_id(wanted);
    while (!passwd.empty()) {
        std::array<std::string_view, 7> field; // name:password:uid:gid:gecos:home:shell
        if (!split(take(passwd, '\n'), field)) {
            continue;
        }
        const auto uid = parse_id(field[2]);
        const auto gid = parse_id(field[3]);
        if (!uid || !gid || !(by_name ? field[0] == wanted : id && *id == *uid)) {
            continue;
        }
        user.uid = *uid;
        user.gid = *gid;
        user.name = field[0];
        user.home = field[5].empty() ? "/" : field[5];
        user.shell = field[6].empty() ? "/bin/sh" : field[6];
        return true;
    }
    return false;
}

std::optional<gid_t> find_group(std::string_view wanted, std::string_view group) {
    while (!group.empty()) {
        std::array<std::string_view, 4> field; // name:password:gid:members
        if (split(take(group, '\n'), field) && field[0] == wanted) {
            if (const auto gid = parse_id(field[2])) {
                return gid;
            }
        }
    }
    return parse_id(wanted);
}

void add_supplementary(std::string_view group, User& user) {
    while (!group.empty()) {
        std::array<std::string_view, 4> field;
        if (!split(take(group, '\n'), field)) {
            continue;
        }
        const auto gid = parse_id(field[2]);
        std::string_view members = field[3];
        while (gid && !members.empty()) {
            if (take(members, ',') == user.name) {
                if (std::find(user.groups.begin(), user.groups.end(), *gid) == user.groups.end()) {
                    user.groups.push_back(*gid);
                }
                break;
            }
        }
    }
}

} // namespace

Outcome<User> find_user(std::string_view wanted, std::string_view passwd, std::string_view group) {
    std::string_view rest = wanted;
    const std::string_view who = take(rest, ':');
    const bool has_group = who.size() < wanted.size();
    const std::string_view name = who.empty() && !has_group ? std::string_view("root") : who;

    User user;
    if (!apply_passwd(name, passwd, true, user) && !apply_passwd(name, passwd, false, user)) {
        if (const auto uid = parse_id(name)) {
            user.uid = *uid;
        } else if (name == "root") {
            user.name = name; // a root file system without /etc/passwd still has a root
            user.home = "/root";
        } else {
            return failure(FailureKind::other, ENOENT,
                           "no user " + quote(name) + " in the sandbox (/etc/passwd)");
        }
    }
    if (has_group) {
        const auto gid = find_group(rest, group);
        if (!gid) {
            return failure(FailureKind::other, ENOENT,
                           "no group " + quote(rest) + " in the sandbox (/etc/group)");
        }
        user.gid = *gid;
    }
    user.groups.push_back(user.gid);
    if (!has_group && !user.name.empty()) {
        add_supplementary(group, user);
    }
    return user;
}

} // namespace wd::agent
