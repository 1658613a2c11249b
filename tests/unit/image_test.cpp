#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "image/golden.hpp"
#include "util/file.hpp"
#include "util/size.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace wd;
using namespace wd::image;
namespace fs = std::filesystem;

namespace {

struct Folder {
    fs::path path;
    Folder() {
        char name[] = "/tmp/wd-image-XXXXXX";
        REQUIRE(::mkdtemp(name) != nullptr);
        path = name;
    }
    ~Folder() { (void)remove_tree(path); }
};

void write(const fs::path& path, std::string_view text) {
    std::ofstream(path) << text;
}

const Shape kShape{
    .cpus = 2, .memory_bytes = 512 * kMiB, .disk_bytes = 8 * kGiB + 1, .accel = model::Accel::kvm};
const SnapshotInfo kInfo{.stamp = "a\nb", .agent_version = "1", .kernel_release = "6"};

struct Goldens {
    Folder folder;
    ImageStore images{folder.path, folder.path};
    Image image{.manifest = {.name = "base", .version = "1"}, .folder = folder.path / "base" / "1"};
    fs::path staging = golden_staging(images, image, kShape);

    Goldens() {
        fs::create_directories(image.folder);
        fs::create_directory(staging);
        write(staging / "memory", "m");
        write(staging / "state", "s");
        write(staging / "disk.qcow2", "d");
    }
    ErrorCode problem(std::string_view stamp = "a\nb") const {
        return find_golden(image, kShape, stamp).error().code;
    }
};

} // namespace

TEST_CASE("a shape's name tells all of it") {
    CHECK(kShape.name() == "2c-512M-8589934593B-kvm");
}

TEST_CASE("a golden snapshot is there when it is committed, and for its stamp alone") {
    Goldens g;
    CHECK(g.problem() == ErrorCode::not_found);
    REQUIRE(commit_golden(g.staging, g.image, kShape, kInfo));
    CHECK(!fs::exists(g.staging));
    const auto found = find_golden(g.image, kShape, "a\nb");
    REQUIRE(found);
    CHECK(found->info.agent_version == "1");
    CHECK(found->info.kernel_release == "6");
    CHECK(fs::exists(found->memory()));
    CHECK(fs::exists(found->state()));
    CHECK(fs::exists(found->disk()));
    CHECK(g.problem("another") == ErrorCode::unsupported);
    Shape other = kShape;
    other.cpus = 1;
    CHECK(find_golden(g.image, other, "a\nb").error().code == ErrorCode::not_found);
    // A newer one takes its place.
    fs::create_directory(g.staging);
    for (const char* const file : {"memory", "state", "disk.qcow2"}) {
        write(g.staging / file, "new");
    }
    REQUIRE(commit_golden(g.staging, g.image, kShape, {.stamp = "c"}));
    CHECK(g.problem() == ErrorCode::unsupported);
    CHECK(find_golden(g.image, kShape, "c"));
    CHECK(discard_golden(g.images, found->folder));
    CHECK(g.problem() == ErrorCode::not_found);
    CHECK(discard_golden(g.images, found->folder)); // twice is no error
    CHECK(ImageStore::remove_trash(g.folder.path));
    CHECK(fs::is_empty(g.image.folder / "golden"));
}

TEST_CASE("a golden snapshot without a file, or with one that was changed, is not used") {
    for (const char* const file : {"memory", "state", "disk.qcow2", "snapshot.json"}) {
        CAPTURE(file);
        Goldens g;
        REQUIRE(commit_golden(g.staging, g.image, kShape, kInfo));
        const fs::path path = find_golden(g.image, kShape, "a\nb")->folder / file;
        SUBCASE("truncated") {
            REQUIRE(::truncate(path.c_str(), 0) == 0);
        }
        SUBCASE("missing") {
            REQUIRE(::unlink(path.c_str()) == 0);
        }
        SUBCASE("written") {
            write(path, "other");
        }
        CHECK(g.problem() != ErrorCode::not_found);
        CHECK(!find_golden(g.image, kShape, "a\nb"));
    }
}

TEST_CASE("one that is incomplete cannot be committed, and what was being made is swept") {
    Goldens g;
    REQUIRE(::unlink((g.staging / "state").c_str()) == 0);
    CHECK(!commit_golden(g.staging, g.image, kShape, kInfo));
    CHECK(g.problem() == ErrorCode::not_found);
    discard_golden_staging(g.images);
    CHECK(!fs::exists(g.staging));
}
