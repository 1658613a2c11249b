// wd doctor: what is wrong on this host. Checks of its own that need no workdird, then the
// daemon's.

#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/verbs.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <grp.h>
#include <unistd.h>

namespace wd::cli {
namespace {

constexpr const char* kGroup = "workdir";

Json check(std::string_view name, std::string_view status, std::string detail,
           std::string remedy = {}) {
    return {{"check", name},
            {"status", status},
            {"detail", std::move(detail)},
            {"remedy", std::move(remedy)}};
}

std::string bus_address() {
    const char* set = ::getenv("DBUS_SYSTEM_BUS_ADDRESS");
    return set != nullptr ? set : "/run/dbus/system_bus_socket";
}

Json check_bus(const Result<Bus>& bus) {
    if (bus) {
        return check("bus", "ok", bus_address());
    }
    return check("bus", "failed", bus_address() + ": " + bus.error().message,
                 "apt install dbus; systemctl start dbus");
}

// The unit through PID 1, which must be systemd.
Json check_service(Bus& bus) {
    constexpr const char* kSystemd = "org.freedesktop.systemd1";
    const auto path = bus.call({.path = "/org/freedesktop/systemd1",
                                .interface = "org.freedesktop.systemd1.Manager",
                                .member = "LoadUnit",
                                .arguments = {std::string("workdird.service")},
                                .timeout = std::chrono::seconds(5),
                                .destination = kSystemd});
    if (!path || path->values.empty() || !path->values[0].is_string()) {
        return check("service", "failed",
                     "systemd does not answer: " + (path ? "no unit" : path.error().message),
                     "workdir needs systemd as the init process; in a container use tools/devbox");
    }
    const auto unit = bus.properties({.path = path->values[0].get<std::string>(),
                                      .interface = "org.freedesktop.systemd1.Unit",
                                      .timeout = std::chrono::seconds(5),
                                      .destination = kSystemd});
    if (!unit) {
        return check("service", "failed", unit.error().message, "systemctl status workdird");
    }
    if (text_of(*unit, "LoadState") != "loaded") {
        return check("service", "failed",
                     "workdird.service is " + or_dash(text_of(*unit, "LoadState")),
                     "apt install workdir");
    }
    const std::string active = text_of(*unit, "ActiveState");
    const std::string detail =
        fmt::format("workdird.service is {} ({})", active, text_of(*unit, "SubState"));
    if (active == "active") {
        return check("service", "ok", detail);
    }
    return check("service", "failed", detail,
                 active == "failed" ? "see journalctl -u workdird, then systemctl restart workdird"
                                    : "systemctl start workdird");
}

Json check_access() {
    if (::geteuid() == 0) {
        return check("access", "ok", "root manages all sandboxes");
    }
    const struct group* group = ::getgrnam(kGroup);
    if (group == nullptr) {
        return check("access", "failed", "there is no group workdir", "apt install workdir");
    }
    std::vector<gid_t> groups(65536);
    const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
    groups.resize(static_cast<std::size_t>(std::max(0, count)));
    if (::getegid() == group->gr_gid ||
        std::find(groups.begin(), groups.end(), group->gr_gid) != groups.end()) {
        return check("access", "ok", "you are a member of group workdir");
    }
    return check("access", "warning", "you are not a member of group workdir",
                 "adduser USER workdir (as root), then log in anew");
}

Json check_daemon(const Result<Reply>& reply) {
    if (reply) {
        return check("workdird", "ok", "answers");
    }
    if (reply.error().code == ErrorCode::not_authorised) { // "access" says what to do
        return check("workdird", "warning", reply.error().message);
    }
    return check("workdird", "failed", reply.error().message,
                 reply.error().code == ErrorCode::unreachable
                     ? "systemctl start workdird; journalctl -u workdird"
                     : "journalctl -u workdird");
}

std::string text_of_checks(const Json& checks) {
    Table table({"CHECK", "STATUS", "DETAIL"});
    for (const Json& one : checks) {
        table.add({text_of(one, "check"), text_of(one, "status"), text_of(one, "detail")});
    }
    std::string text = table.text();
    bool first = true;
    for (const Json& one : checks) {
        if (text_of(one, "status") != "ok" && !text_of(one, "remedy").empty()) {
            text += fmt::format("{}{}: {}\n", first ? "\nWhat to do:\n  " : "  ",
                                text_of(one, "check"), text_of(one, "remedy"));
            first = false;
        }
    }
    return text;
}

} // namespace

Result<int> run_doctor(const Words& words) {
    bool json = false;
    Args args("doctor", "[--json]", "Check this host and say what to do about what is wrong.",
              "Exits 0 when no check failed, else 1. Works without a running workdird too.");
    args.flag("--json", json, "print JSON: an array of {check, status, detail, remedy}");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    Json checks = Json::array();
    auto bus = Bus::open().and_then([](Bus&& opened) -> Result<Bus> {
        // sd_bus_open_system(3) does not wait for the handshake; a first question does.
        auto answered = opened.call({.path = "/org/freedesktop/DBus",
                                     .interface = "org.freedesktop.DBus",
                                     .member = "GetId",
                                     .arguments = {},
                                     .timeout = std::chrono::seconds(5),
                                     .destination = "org.freedesktop.DBus"});
        if (!answered) {
            return fail(std::move(answered).error());
        }
        return std::move(opened);
    });
    checks.push_back(check_bus(bus));
    if (bus) {
        checks.push_back(check_service(*bus));
    }
    checks.push_back(check_access());
    if (bus) {
        // The KVM probe may have to boot a kernel first.
        auto reply = bus->call({.member = "Doctor", .arguments = {}});
        checks.push_back(check_daemon(reply));
        if (reply && !reply->values.empty() && reply->values[0].is_array()) {
            for (const Json& one : reply->values[0]) {
                checks.push_back(one);
            }
        }
    }
    const bool failed = std::any_of(checks.begin(), checks.end(), [](const Json& one) {
        return text_of(one, "status") == "failed";
    });
    const int printed = json ? print_json(checks) : print(text_of_checks(checks));
    return printed != 0 ? printed : failed ? 1 : 0;
}

} // namespace wd::cli
