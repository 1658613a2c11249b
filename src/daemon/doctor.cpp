#include "daemon/doctor.hpp"

#include "bus/error.hpp"
#include "util/file.hpp"
#include "util/size.hpp"
#include "util/text.hpp"

#include <iterator>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

namespace wd::daemon {
namespace {

using Status = Finding::Status;

Finding check_executable(std::string check, const std::string& path, std::string remedy) {
    if (::access(path.c_str(), X_OK) == 0) {
        return {.check = std::move(check), .detail = path};
    }
    return {.check = std::move(check),
            .status = Status::failed,
            .detail = path + " is not there or not executable",
            .remedy = std::move(remedy)};
}

Finding check_accel(const Result<sandbox::AccelDecision>& decision) {
    if (!decision) {
        return {.check = "kvm",
                .status = Status::failed,
                .detail = decision.error().message,
                .remedy = "set vmm.accel = \"auto\" in /etc/workdir/workdird.toml, or enable "
                          "virtualization in the firmware"};
    }
    if (decision->accel == model::Accel::kvm) {
        return {.check = "kvm", .detail = decision->detail};
    }
    return {.check = "kvm",
            .status = Status::warning,
            .detail = fmt::format("guests run under TCG, QEMU's emulation: slower, and QEMU does "
                                  "not call it a security boundary ({})",
                                  decision->detail),
            .remedy = "enable virtualization in the firmware (or nested virtualization on the "
                      "outer host) and load kvm_intel or kvm_amd; to probe again, "
                      "remove /run/workdir/accel and restart workdird"};
}

Finding check_cgroup() {
    auto text = read_file("/sys/fs/cgroup/cgroup.controllers", 4096);
    if (!text) {
        return {.check = "cgroup",
                .status = Status::warning,
                .detail = "cgroup v2 is not mounted at /sys/fs/cgroup; limits go through v1",
                .remedy = "boot with systemd.unified_cgroup_hierarchy=1"};
    }
    std::istringstream words(*text);
    const std::set<std::string> have{std::istream_iterator<std::string>(words), {}};
    std::string missing;
    for (const char* controller : {"cpu", "io", "memory", "pids"}) {
        if (!have.contains(controller)) {
            missing += std::string(missing.empty() ? "" : " ") + controller;
        }
    }
    if (missing.empty()) {
        return {.check = "cgroup", .detail = "v2 with cpu, io, memory and pids"};
    }
    return {.check = "cgroup",
            .status = Status::failed,
            .detail = "cgroup v2 lacks the controllers " + missing,
            .remedy = "remove cgroup_disable= from the kernel command line"};
}

Finding check_guest(const config::Config& config) {
    auto files = sandbox::open_guest_files(config);
    if (files) {
        return {.check = "guest", .detail = config.guest.kernel + ", " + config.guest.initramfs};
    }
    return {.check = "guest",
            .status = Status::failed,
            .detail = files.error().message,
            .remedy = "apt install --reinstall workdir-guest"};
}

Finding check_disk(const sandbox::Context& context) {
    auto space = disk_space(context.paths.state);
    if (!space) {
        return {.check = "disk",
                .status = Status::failed,
                .detail = space.error().message,
                .remedy = "make /var/lib/workdir readable"};
    }
    const std::uint64_t reserve = context.config.limits.disk_reserve_bytes;
    std::string detail = fmt::format(
        "{} of {} free below {}, {} in reserve", format_size(space->free_bytes),
        format_size(space->total_bytes), context.paths.state.string(), format_size(reserve));
    if (space->free_bytes > reserve + context.config.defaults.disk_bytes) {
        return {.check = "disk", .detail = std::move(detail)};
    }
    return {.check = "disk",
            .status = Status::warning,
            .detail = detail + ": too little for a default sandbox",
            .remedy = "free space, or lower limits.disk_reserve or defaults.disk"};
}

Finding check_images(const sandbox::Context& context) {
    const auto problems = context.images.problems();
    if (!problems.empty()) {
        return {.check = "images",
                .status = Status::warning,
                .detail = problems.front(),
                .remedy = "remove that folder and build the image again"};
    }
    const auto images = context.images.list();
    if (images.empty()) {
        return {.check = "images",
                .status = Status::warning,
                .detail = "no image has been built yet",
                .remedy = "wd image build base"};
    }
    return {.check = "images", .detail = fmt::format("{} versions", images.size())};
}

// Present on the bus, or can be started by it.
Finding check_polkit(bus::Connection& bus) {
    auto known = bus::attempt([&] {
        auto proxy = bus::make_proxy(bus.get(), "org.freedesktop.DBus", "/org/freedesktop/DBus");
        for (const char* method : {"ListNames", "ListActivatableNames"}) {
            auto call = bus::make_call(*proxy, "org.freedesktop.DBus", method);
            auto reply = proxy->callMethod(call);
            std::vector<std::string> names;
            reply >> names;
            for (const std::string& name : names) {
                if (name == "org.freedesktop.PolicyKit1") {
                    return true;
                }
            }
        }
        return false;
    });
    if (known && *known) {
        return {.check = "polkit", .detail = "org.freedesktop.PolicyKit1 is there"};
    }
    return {.check = "polkit",
            .status = Status::warning,
            .detail = "polkit is not there: only root can use sandboxes",
            .remedy = "apt install polkitd"};
}

} // namespace

std::string_view to_string(Finding::Status status) {
    switch (status) {
    case Status::ok:
        return "ok";
    case Status::warning:
        return "warning";
    case Status::failed:
        return "failed";
    }
    return "";
}

void examine(sandbox::Context& context, bus::Connection& bus,
             std::function<void(std::vector<Finding>)> done) {
    context.probe.decide([&context, &bus,
                          done = std::move(done)](const Result<sandbox::AccelDecision>& decision) {
        const model::Accel accel = decision ? decision->accel : model::Accel::tcg;
        std::vector<Finding> findings;
        findings.push_back(check_accel(decision));
        findings.push_back(check_cgroup());
        findings.push_back(check_executable("qemu", sandbox::qemu_binary(context.config, accel),
                                            "apt install qemu-system-x86, or correct vmm.qemu in "
                                            "/etc/workdir/workdird.toml"));
        findings.push_back(check_executable("shim", "/usr/lib/workdir/workdir-shim",
                                            "apt install --reinstall workdir"));
        findings.push_back(check_guest(context.config));
        findings.push_back(check_disk(context));
        findings.push_back(check_images(context));
        findings.push_back(check_polkit(bus));
        findings.push_back({.check = "dbus", .detail = "dev.workdir1 answers"});
        done(std::move(findings));
    });
}

} // namespace wd::daemon
