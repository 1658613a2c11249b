#include "pid1/property.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace wd::pid1 {
namespace {

struct Print {
    std::string operator()(bool v) const { return v ? "yes" : "no"; }
    std::string operator()(std::int32_t v) const { return fmt::format("{}", v); }
    std::string operator()(std::uint32_t v) const { return fmt::format("{}", v); }
    std::string operator()(std::uint64_t v) const {
        return v == kInfinity ? "infinity" : fmt::format("{}", v);
    }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<std::string>& v) const {
        return fmt::format("{}", fmt::join(v, " "));
    }
    std::string operator()(const NameList& v) const {
        return fmt::format("{}{}", v.allow ? "" : "~", fmt::join(v.names, " "));
    }
    std::string operator()(const DeviceRules& v) const {
        std::string out;
        for (const auto& [path, access] : v.rules) {
            out += fmt::format("{}{} {}", out.empty() ? "" : "; ", path, access);
        }
        return out;
    }
    std::string operator()(const Command& v) const {
        return fmt::format("{}{}", v.ignore_failure ? "-" : "", fmt::join(v.argv, " "));
    }
    std::string operator()(const PathPairs& v) const {
        std::string out;
        for (const auto& [from, to] : v.paths) {
            out += fmt::format("{}{}:{}", out.empty() ? "" : " ", from, to);
        }
        return out;
    }
    std::string operator()(const BorrowedFd&) const { return "(fd)"; }
};

} // namespace

std::string to_string(const Property& property) {
    return fmt::format("{}={}", property.name, std::visit(Print{}, property.value));
}

} // namespace wd::pid1
