#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "store/store.hpp"
#include "util/file.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

using namespace wd;

namespace {

struct Folder {
    std::filesystem::path path;
    Folder() {
        char name[] = "/tmp/wd-store-XXXXXX";
        REQUIRE(::mkdtemp(name) != nullptr);
        path = name;
    }
    ~Folder() { (void)remove_tree(path); }
    std::filesystem::path db() const { return path / "state.db"; }
};

store::SandboxRow full_row() {
    store::SandboxRow row;
    row.id = "sb-abcdefghij";
    row.spec.name = "box";
    row.spec.image = "base";
    row.spec.image_version = "7";
    row.spec.cpus = 2;
    row.spec.memory_bytes = 1ull << 40;
    row.spec.disk_bytes = 3;
    row.spec.idle_timeout = std::chrono::milliseconds(90);
    row.spec.labels = {{"a", "1"}, {"b", "☕"}};
    row.spec.env = {"A=1", "B=\xff\n'\"", "C="};
    row.owner_uid = 4'000'000'000u;
    row.state = model::State::running;
    row.accel = model::Accel::kvm;
    row.boot_path = model::BootPath::snapshot_restore;
    row.machine_id = "m";
    row.invocation_id = "i";
    row.created_us = 1;
    row.started_us = 2;
    row.ended_us = 3;
    row.timings.ready = 1.5;
    row.agent_version = "v";
    row.kernel_release = "k";
    row.end = {.reason = model::EndReason::oom, .detail = "d", .limit = 5, .peak = 6};
    return row;
}

} // namespace

TEST_CASE("a row comes back as it was saved") {
    Folder folder;
    {
        auto store = store::Store::open(folder.db());
        REQUIRE(store);
        REQUIRE(store->put(full_row()));
    }
    auto store = store::Store::open(folder.db());
    REQUIRE(store);
    const auto rows = store->load_all().value();
    REQUIRE(rows.size() == 1);
    const auto& row = rows[0];
    const auto want = full_row();
    CHECK(row.id == want.id);
    CHECK(row.spec.name == want.spec.name);
    CHECK(row.spec.idle_timeout == want.spec.idle_timeout);
    CHECK(row.spec.labels == want.spec.labels);
    CHECK(row.spec.env == want.spec.env);
    CHECK(row.spec.memory_bytes == want.spec.memory_bytes);
    CHECK(row.owner_uid == want.owner_uid);
    CHECK(row.state == want.state);
    CHECK(row.accel == want.accel);
    CHECK(row.boot_path == want.boot_path);
    CHECK(row.invocation_id == want.invocation_id);
    CHECK(row.timings.ready == want.timings.ready);
    CHECK(row.end.reason == want.end.reason);
    CHECK(row.end.peak == want.end.peak);
    CHECK(row.ended_us == want.ended_us);
}

TEST_CASE("update, remove, and names are unique") {
    Folder folder;
    auto store = store::Store::open(folder.db());
    REQUIRE(store);
    auto row = full_row();
    REQUIRE(store->put(row));
    row.state = model::State::stopped;
    row.invocation_id.clear();
    REQUIRE(store->put(row));
    CHECK(store->load_all()->at(0).state == model::State::stopped);
    CHECK(store->load_all()->at(0).invocation_id.empty());

    auto other = full_row();
    other.id = "sb-aaaaaaaaaa";
    CHECK(store->put(other).error().code == ErrorCode::exists);
    other.spec.name.clear();
    CHECK(store->put(other));
    auto third = other;
    third.id = "sb-bbbbbbbbbb";
    CHECK(store->put(third)); // no name is not a name

    CHECK(store->remove(row.id));
    CHECK(store->remove(row.id));
    CHECK(store->load_all()->size() == 2);
}

TEST_CASE("a damaged or newer database is refused, and a second writer") {
    Folder folder;
    REQUIRE(write_file_atomically(folder.db(), std::string(8192, 'x')));
    CHECK_FALSE(store::Store::open(folder.db()));

    const auto other = folder.path / "other.db";
    {
        auto store = store::Store::open(other);
        REQUIRE(store);
        REQUIRE(store->put(full_row()));
        CHECK_FALSE(store::Store::open(other));
    }
    // user_version is the big-endian word at byte 60 of the file:
    // https://sqlite.org/fileformat.html
    auto fd = open_file(other, O_RDWR);
    REQUIRE(fd);
    const unsigned char version[4] = {0, 0, 0, 99};
    REQUIRE(::pwrite(fd->get(), version, 4, 60) == 4);
    auto newer = store::Store::open(other);
    REQUIRE_FALSE(newer);
    CHECK(newer.error().code == ErrorCode::unsupported);
}
