#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "config/config.hpp"
#include "util/size.hpp"

#include <doctest/doctest.h>

using namespace wd;

namespace {
const config::Host kHost{.memory_bytes = 10 * kGiB, .cpus = 4};

std::string problem(std::string_view text) {
    auto parsed = config::parse(text, "x.toml", kHost);
    return parsed ? std::string() : parsed.error().message;
}
bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}
} // namespace

TEST_CASE("an empty file gives the defaults") {
    const auto config = config::parse("", "x.toml", kHost).value();
    CHECK(config.vmm.accel == model::AccelChoice::automatic);
    CHECK(config.defaults.image == "base");
    CHECK(config.limits.memory_total_bytes == 10 * kGiB / 100 * 90);
    CHECK(config.parallel_boots == 4);
    CHECK(config::load("/nonexistent/workdird.toml", kHost));
}

TEST_CASE("every setting is read") {
    const auto config = config::parse(R"(
[vmm]
accel = "tcg"
qemu = "/opt/qemu"
boot_timeout = "2min"
kvm_probe_timeout = "500ms"
[guest]
kernel = "/k"
initramfs = "/i"
[defaults]
image = "other"
cpus = 2
memory = "1G"
disk = "3G"
[limits]
max_cpus = 3
max_memory = "50%"
max_disk = "9G"
max_sandboxes = 5
max_sandboxes_per_user = 4
memory_total = "7G"
disk_reserve = "1G"
tasks_max = 77
parallel_boots = 1
)",
                                      "x.toml", kHost)
                            .value();
    CHECK(config.vmm.accel == model::AccelChoice::tcg);
    CHECK(config.vmm.qemu == "/opt/qemu");
    CHECK(config.vmm.boot_timeout == std::chrono::minutes(2));
    CHECK(config.vmm.kvm_probe_timeout == std::chrono::milliseconds(500));
    CHECK(config.guest.kernel == "/k");
    CHECK(config.guest.initramfs == "/i");
    CHECK(config.defaults.image == "other");
    CHECK(config.defaults.cpus == 2);
    CHECK(config.defaults.memory_bytes == kGiB);
    CHECK(config.defaults.disk_bytes == 3 * kGiB);
    CHECK(config.limits.max_cpus == 3);
    CHECK(config.limits.max_memory_bytes == 10 * kGiB / 100 * 50);
    CHECK(config.limits.max_disk_bytes == 9 * kGiB);
    CHECK(config.limits.max_sandboxes == 5);
    CHECK(config.limits.max_sandboxes_per_user == 4);
    CHECK(config.limits.memory_total_bytes == 7 * kGiB);
    CHECK(config.limits.disk_reserve_bytes == kGiB);
    CHECK(config.tasks_max == 77);
    CHECK(config.parallel_boots == 1);
}

TEST_CASE("mistakes are named with file, line and key") {
    CHECK(has(problem("[limits]\nmax_cpu = 3\n"), "x.toml:2: limits.max_cpu: is not a known"));
    CHECK(has(problem("[limit]\n"), "x.toml:1: \"limit\": is not a known section"));
    CHECK(has(problem("x = 1\n"), "\"x\""));
    CHECK(has(problem("limits = 3\n"), "limits: is not a table"));
    CHECK(has(problem("[limits]\nmax_cpus = \"3\"\n"), "x.toml:2: limits.max_cpus: takes a whole"));
    CHECK(has(problem("[limits]\nmax_cpus = 0\n"), "from 1 to 64"));
    CHECK(has(problem("[limits]\nmax_cpus = 3.0\n"), "whole number"));
    CHECK(has(problem("[limits]\nmax_disk = 17\n"), "takes a size"));
    CHECK(has(problem("[limits]\nmax_disk = \"big\"\n"), "\"big\" is not a size"));
    CHECK(has(problem("[limits]\nmemory_total = \"x%\"\n"), "not a share"));
    CHECK(has(problem("[vmm]\nboot_timeout = \"5\"\n"), "not a time"));
    CHECK(has(problem("[vmm]\nboot_timeout = \"0s\"\n"), "not a time"));
    CHECK(has(problem("[vmm]\nqemu = \"qemu\"\n"), "absolute path"));
    CHECK(has(problem("[vmm]\naccel = \"xen\"\n"), "none of"));
    CHECK(has(problem("[vmm\naccel = 1"), "x.toml:1:"));
    CHECK(has(problem("[defaults]\nimage = \"../x\"\n"), "not allowed"));
    CHECK(has(problem("[defaults]\ncpus = 5\n[limits]\nmax_cpus = 4\n"),
              "x.toml: defaults.cpus is 5, above limits.max_cpus with 4"));
    CHECK(has(problem("[limits]\nmax_disk = \"1G\"\n"), "above limits.max_disk with 1G"));
}
