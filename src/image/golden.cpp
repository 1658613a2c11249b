#include "image/golden.hpp"

#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/size.hpp"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::image {
namespace {

namespace fs = std::filesystem;

const SnapshotFiles kFiles{"memory", "state", "disk.qcow2"};
constexpr std::string_view kStaging = ".golden-";

fs::path folder_of(const Image& image, const Shape& shape) {
    return image.folder / "golden" / shape.name();
}

Result<void> move_to_trash(const fs::path& images_dir, const fs::path& folder) {
    const fs::path trash = images_dir / fmt::format(".trash-golden-{}", new_machine_id());
    if (::rename(folder.c_str(), trash.c_str()) < 0 && errno != ENOENT) {
        return fail_errno(errno, fmt::format("remove {}", folder.string()));
    }
    return {};
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
    const fs::path folder = folder_of(image, shape);
    auto info = open_snapshot(folder, kFiles, stamp);
    if (!info) {
        return fail(std::move(info).error());
    }
    return Golden{.folder = folder, .info = std::move(*info)};
}

fs::path golden_staging(const ImageStore& images, const Image& image, const Shape& shape) {
    return images.folder() / fmt::format("{}{}-{}-{}", kStaging, image.manifest.name,
                                         image.manifest.version, shape.name());
}

Result<void> commit_golden(const fs::path& staging, const Image& image, const Shape& shape,
                           const SnapshotInfo& info) {
    if (auto done = seal_snapshot(staging, kFiles, info); !done) {
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
    return sync_path(folder.parent_path());
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
