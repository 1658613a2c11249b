#pragma once
// Properties of a transient unit, in the types that org.freedesktop.systemd1(5) gives them, without
// the D-Bus library's: so a unit can be described, compared and printed anywhere.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace wd::pid1 {

struct NameList { // (bas): SystemCallFilter, RestrictAddressFamilies
    bool allow = true;
    std::vector<std::string> names;
    bool operator==(const NameList&) const = default;
};
struct DeviceRules { // a(ss): DeviceAllow, path and "rwm"
    std::vector<std::pair<std::string, std::string>> rules;
    bool operator==(const DeviceRules&) const = default;
};
struct Command {                   // a(sasb) with one entry: ExecStart, ExecStopPost
    std::vector<std::string> argv; // argv[0] is the absolute path
    bool ignore_failure = false;
    bool operator==(const Command&) const = default;
};
struct PathPairs { // a(ssbt): BindPaths, BindReadOnlyPaths: source, destination
    std::vector<std::pair<std::string, std::string>> paths;
    bool operator==(const PathPairs&) const = default;
};
struct BorrowedFd { // h: StandardInputFileDescriptor; open until the call has been made
    int fd = -1;
    bool operator==(const BorrowedFd&) const = default;
};

using Value =
    std::variant<bool, std::int32_t, std::uint32_t, std::uint64_t, std::string,
                 std::vector<std::string>, NameList, DeviceRules, Command, PathPairs, BorrowedFd>;

struct Property {
    std::string name;
    Value value;
};

// "Name=value" as systemctl show would print it, for logs and golden tests.
std::string to_string(const Property& property);

inline constexpr std::uint64_t kInfinity = UINT64_MAX; // "infinity" of limits and times

} // namespace wd::pid1
