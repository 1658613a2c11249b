#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "model/spec.hpp"
#include "util/size.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace wd;
using namespace wd::model;

namespace {

// Both ways, for every value from the first to the last.
template <class Enum>
void check_table(Enum last) {
    std::set<std::string_view> names;
    for (int i = 0; i <= static_cast<int>(last); ++i) {
        const auto value = static_cast<Enum>(i);
        const std::string_view name = to_string(value);
        CHECK(name != "?");
        CHECK(from_string<Enum>(name) == value);
        names.insert(name);
    }
    CHECK(names.size() == static_cast<std::size_t>(last) + 1);
    CHECK_FALSE(from_string<Enum>("no such word"));
}

const Limits kLimits{.max_cpus = 4,
                     .max_memory_bytes = 8 * kGiB,
                     .max_disk_bytes = 100 * kGiB,
                     .max_sandboxes = 3,
                     .max_sandboxes_per_user = 2,
                     .memory_total_bytes = 10 * kGiB,
                     .disk_reserve_bytes = 2 * kGiB};

SandboxSpec good_spec() {
    return {.image = "base", .cpus = 1, .memory_bytes = kGiB, .disk_bytes = 8 * kGiB};
}

// The message of a failure; "" when there was none.
std::string said(const Result<void>& result, ErrorCode code) {
    if (result) {
        return "";
    }
    CHECK(result.error().code == code);
    return result.error().message;
}
bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("every word of the product has one spelling, both ways") {
    check_table(State::failed);
    check_table(EndReason::agent_lost);
    check_table(BootPath::cold_boot);
    check_table(Accel::tcg);
    check_table(AccelChoice::tcg);
    check_table(Phase::ready);
}

TEST_CASE("a spec is checked against itself and the caps, naming value, limit and setting") {
    CHECK(check_spec(good_spec(), kLimits));
    auto spec = good_spec();
    spec.cpus = 5;
    CHECK(has(said(check_spec(spec, kLimits), ErrorCode::limit), "limits.max_cpus"));
    spec.cpus = 0;
    CHECK(has(said(check_spec(spec, kLimits), ErrorCode::invalid_argument), "1 to 4"));
    spec = good_spec();
    spec.memory_bytes = 9 * kGiB;
    const std::string memory = said(check_spec(spec, kLimits), ErrorCode::limit);
    CHECK(has(memory, "9G"));
    CHECK(has(memory, "8G"));
    CHECK(has(memory, "limits.max_memory"));
    spec.memory_bytes = 64 * kMiB;
    CHECK(has(said(check_spec(spec, kLimits), ErrorCode::invalid_argument), "at least 128M"));
    spec.memory_bytes = kGiB + 1;
    CHECK(has(said(check_spec(spec, kLimits), ErrorCode::invalid_argument), "MiB"));
    spec = good_spec();
    spec.disk_bytes = 101 * kGiB;
    CHECK(has(said(check_spec(spec, kLimits), ErrorCode::limit), "limits.max_disk"));
    spec.disk_bytes = 0;
    CHECK_FALSE(check_spec(spec, kLimits));
    spec = good_spec();
    spec.name = std::string(300, 'x');
    CHECK(has(said(check_spec(spec, kLimits), ErrorCode::invalid_argument), "300"));
    spec = good_spec();
    spec.env = {"secret-without-a-name"};
    CHECK_FALSE(has(said(check_spec(spec, kLimits), ErrorCode::invalid_argument), "secret"));
    spec.env = {"A=" + std::string(200'000, 'x')};
    CHECK(has(said(check_spec(spec, kLimits), ErrorCode::invalid_argument), "131072"));
    spec = good_spec();
    for (int i = 0; i < 33; ++i) {
        spec.labels["l" + std::to_string(i)] = "";
    }
    CHECK(has(said(check_spec(spec, kLimits), ErrorCode::invalid_argument), "33 labels"));
}

TEST_CASE("admission counts what is there") {
    const Usage idle{.disk_free_bytes = 50 * kGiB};
    CHECK(admit(good_spec(), kLimits, idle, true));
    Usage usage = idle;
    usage.sandboxes = 3;
    CHECK(has(said(admit(good_spec(), kLimits, usage, true), ErrorCode::limit),
              "limits.max_sandboxes"));
    CHECK(admit(good_spec(), kLimits, usage, false)); // a start makes no new one
    usage = idle;
    usage.sandboxes_of_user = 2;
    CHECK(has(said(admit(good_spec(), kLimits, usage, true), ErrorCode::limit),
              "limits.max_sandboxes_per_user"));
    usage = idle;
    usage.live_memory_bytes = 9 * kGiB;
    const std::string memory = said(admit(good_spec(), kLimits, usage, true), ErrorCode::limit);
    CHECK(has(memory, "1G"));
    CHECK(has(memory, "10G"));
    CHECK(has(memory, "limits.memory_total"));
    usage.live_memory_bytes = 20 * kGiB; // a limit that was lowered
    CHECK_FALSE(admit(good_spec(), kLimits, usage, false));
    usage = idle;
    usage.disk_free_bytes = 9 * kGiB;
    const std::string disk = said(admit(good_spec(), kLimits, usage, true), ErrorCode::disk_full);
    CHECK(has(disk, "8G"));
    CHECK(has(disk, "9G"));
    CHECK(has(disk, "limits.disk_reserve"));
    CHECK(admit(good_spec(), kLimits, usage, false));
    usage.disk_free_bytes = kGiB;
    CHECK_FALSE(admit(good_spec(), kLimits, usage, false));
}
