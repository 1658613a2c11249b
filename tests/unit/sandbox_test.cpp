#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "sandbox/image_jobs.hpp"
#include "sandbox/unit_spec.hpp"
#include "util/size.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace wd;
using namespace wd::sandbox;

namespace {

std::vector<std::string> lines_of(const std::vector<pid1::Property>& properties) {
    std::vector<std::string> lines;
    for (const auto& property : properties) {
        lines.push_back(pid1::to_string(property));
    }
    return lines;
}
bool has(const std::vector<std::string>& lines, std::string_view line) {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
}

VmmUnit unit_with(model::Accel accel) {
    return {.id = "sb-abcdefghij",
            .description = "test",
            .accel = accel,
            .cpus = 2,
            .memory_bytes = 512 * kMiB,
            .tasks_max = 128,
            .control_socket = 7};
}

} // namespace

TEST_CASE("a sandbox's unit is confined and limited") {
    for (const auto accel : {model::Accel::tcg, model::Accel::kvm}) {
        const auto lines = lines_of(vmm_unit_properties(unit_with(accel)));
        for (const char* line : {"DynamicUser=yes",
                                 "NoNewPrivileges=yes",
                                 "CapabilityBoundingSet=0",
                                 "AmbientCapabilities=0",
                                 "ProtectSystem=strict",
                                 "ProtectHome=yes",
                                 "PrivateTmp=yes",
                                 "PrivateIPC=yes",
                                 "PrivateNetwork=yes",
                                 "ProtectProc=invisible",
                                 "ProcSubset=pid",
                                 "RestrictNamespaces=0",
                                 "RestrictAddressFamilies=AF_UNIX",
                                 "DevicePolicy=closed",
                                 "SystemCallArchitectures=native",
                                 "SystemCallFilter=~@privileged @resources @aio",
                                 "SystemCallErrorNumber=1",
                                 "LimitCORE=0",
                                 "KillMode=mixed",
                                 "OOMPolicy=stop",
                                 "Slice=workdir.slice",
                                 "Environment=WORKDIR_SANDBOX=sb-abcdefghij",
                                 "StandardInputFileDescriptor=(fd)",
                                 "CPUQuotaPerSecUSec=2000000",
                                 "TasksMax=128",
                                 "MemorySwapMax=0"}) {
            INFO(line);
            CHECK(has(lines, line));
        }
        CHECK(has(lines, "MemoryMax=" + std::to_string(512 * kMiB + model::kMemoryOverheadBytes)));
    }
}

TEST_CASE("only a unit under KVM sees /dev/kvm, and only it forbids writable code") {
    const auto tcg = lines_of(vmm_unit_properties(unit_with(model::Accel::tcg)));
    const auto kvm = lines_of(vmm_unit_properties(unit_with(model::Accel::kvm)));
    CHECK(has(kvm, "DeviceAllow=/dev/kvm rw"));
    CHECK(has(kvm, "BindPaths=/dev/kvm:/dev/kvm"));
    CHECK(has(kvm, "MemoryDenyWriteExecute=yes"));
    CHECK_FALSE(has(tcg, "DeviceAllow=/dev/kvm rw"));
    CHECK(has(tcg, "MemoryDenyWriteExecute=no"));
}

TEST_CASE("no unit of a sandbox is tied to workdird") {
    for (const auto& line : lines_of(vmm_unit_properties(unit_with(model::Accel::kvm)))) {
        for (const char* relation : {"PartOf=", "BindsTo=", "Requires="}) {
            CHECK_FALSE(line.starts_with(relation));
        }
    }
}

TEST_CASE("an image build cleans up behind itself and may do no more than it needs") {
    const auto lines = lines_of(image_build_properties({.description = "d",
                                                        .recipe = "/r",
                                                        .images_dir = "/i",
                                                        .name = "base",
                                                        .version = "1",
                                                        .staging = "/i/.build"}));
    CHECK(has(lines, "ExecStopPost=/bin/rm -rf --one-file-system -- /i/.build"));
    CHECK(has(lines, "ReadWritePaths=/i"));
    CHECK(has(lines, "ProtectSystem=strict"));
    CHECK(has(lines, "NoNewPrivileges=yes"));
    CHECK_FALSE(has(lines, "DynamicUser=yes"));
}

TEST_CASE("the progress of a build is read from its status text") {
    using Pair = std::pair<std::uint32_t, std::string>;
    CHECK(parse_status("37% installing") == Pair{37, "installing"});
    CHECK(parse_status("100% done") == Pair{100, "done"});
    CHECK(parse_status("101% x") == Pair{0, "101% x"});
    CHECK(parse_status("starting") == Pair{0, "starting"});
    CHECK(parse_status("") == Pair{0, ""});
    CHECK(parse_status("5% \x1b[2J").second.find('\x1b') == std::string::npos);
}
