#include "image/golden.hpp"

#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/size.hpp"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::image {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kInfo = "golden.json";
constexpr std::size_t kMaxInfoBytes = 64 * kKiB;
constexpr const char* kFiles[] = {"memory", "state", "disk.qcow2"};
constexpr std::string_view kStaging = ".golden-";

fs::path folder_of(const Image& image, const Shape& shape) {
    return image.folder / "golden" / shape.name();
}

// Size and time of the last change: nobody writes these files once they are complete. (A file that
// is changed behind both is not found out here; its guest does not answer, and boots cold instead.)
Result<Json> print_of(const fs::path& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) < 0) {
        return fail_errno(errno, path.string());
    }
    return Json{static_cast<std::uint64_t>(info.st_size),
                static_cast<std::int64_t>(info.st_mtim.tv_sec),
                static_cast<std::int64_t>(info.st_mtim.tv_nsec)};
}

Result<void> sync_file(const fs::path& path) {
    auto fd = open_file(path, O_RDONLY);
    if (!fd) {
        return fail(std::move(fd).error());
    }
    return ::fsync(fd->get()) == 0 ? Result<void>() : fail_errno(errno, path.string());
}

Result<void> move_to_trash(const fs::path& images_dir, const fs::path& folder) {
    const fs::path trash = images_dir / fmt::format(".trash-golden-{}", new_machine_id());
    if (::rename(folder.c_str(), trash.c_str()) < 0 && errno != ENOENT) {
        return fail_errno(errno, fmt::format("remove {}", folder.string()));
    }
    return {};
}

tl::unexpected<Error> damaged(const fs::path& folder, std::string_view why) {
    return fail(ErrorCode::invalid_argument, fmt::format("{}: {}", folder.string(), why));
}

} // namespace

std::string Shape::name() const {
    const auto size = [](std::uint64_t bytes) {
        return bytes % kMiB == 0 ? fmt::format("{}M", bytes / kMiB) : fmt::format("{}B", bytes);
    };
    return fmt::format("{}c-{}-{}-{}", cpus, size(memory_bytes), size(disk_bytes),
                       model::to_string(accel));
}

Result<Golden> find_golden(const Image& image, const Shape& shape, std::string_view stamp) {
    Golden golden{.folder = folder_of(image, shape), .info = {}};
    std::error_code ec;
    if (!fs::exists(golden.folder, ec)) {
        return fail(ErrorCode::not_found, "there is no golden snapshot of that shape yet");
    }
    auto text = read_file(golden.folder / kInfo, kMaxInfoBytes);
    if (!text) {
        return damaged(golden.folder, text.error().message);
    }
    const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    const auto word = [&](const char* key) {
        return json.is_object() && json.contains(key) && json[key].is_string()
                   ? json[key].get<std::string>()
                   : std::string();
    };
    golden.info = {.stamp = word("stamp"),
                   .agent_version = word("agent_version"),
                   .kernel_release = word("kernel_release")};
    if (golden.info.stamp != stamp) {
        return fail(ErrorCode::unsupported,
                    fmt::format("{}: made by another QEMU, guest kernel, workdir or on another "
                                "processor",
                                golden.folder.string()));
    }
    for (const char* const file : kFiles) {
        const auto print = print_of(golden.folder / file);
        if (!print) {
            return damaged(golden.folder, print.error().message);
        }
        if (!json.contains(file) || json[file] != *print) {
            return damaged(golden.folder, fmt::format("{} was changed", file));
        }
    }
    return golden;
}

fs::path golden_staging(const ImageStore& images, const Image& image, const Shape& shape) {
    return images.folder() / fmt::format("{}{}-{}-{}", kStaging, image.manifest.name,
                                         image.manifest.version, shape.name());
}

Result<void> commit_golden(const fs::path& staging, const Image& image, const Shape& shape,
                           const GoldenInfo& info) {
    Json json{{"stamp", info.stamp},
              {"agent_version", info.agent_version},
              {"kernel_release", info.kernel_release}};
    for (const char* const file : kFiles) {
        if (auto done = sync_file(staging / file); !done) {
            return done;
        }
        auto print = print_of(staging / file);
        if (!print) {
            return fail(std::move(print).error());
        }
        json[file] = *print;
    }
    if (auto done = write_file_atomically(staging / kInfo, json.dump(2) + "\n"); !done) {
        return done;
    }
    const fs::path folder = folder_of(image, shape);
    if (::mkdir(folder.parent_path().c_str(), 0700) < 0 && errno != EEXIST) {
        return fail_errno(errno, fmt::format("make {}", folder.parent_path().string()));
    }
    // One of another stamp, that a create with another configuration has left.
    if (auto done = move_to_trash(staging.parent_path(), folder); !done) {
        return done;
    }
    if (::rename(staging.c_str(), folder.c_str()) < 0) {
        return fail_errno(errno, fmt::format("make {}", folder.string()));
    }
    return sync_file(folder.parent_path());
}

Result<void> discard_golden(const ImageStore& images, const fs::path& folder) {
    return move_to_trash(images.folder(), folder);
}

void discard_golden_staging(const ImageStore& images) {
    std::vector<fs::path> found;
    std::error_code ec;
    for (fs::directory_iterator at(images.folder(), ec), end; !ec && at != end; at.increment(ec)) {
        if (at->path().filename().string().starts_with(kStaging)) {
            found.push_back(at->path());
        }
    }
    for (const fs::path& path : found) {
        (void)discard_golden(images, path);
    }
}

} // namespace wd::image
