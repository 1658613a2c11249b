#pragma once
// Golden snapshots: a booted and set-up guest of an image version and shape, stopped, in files:
// IMAGES_DIR/<name>/<version>/golden/<shape>/{memory, state, disk.qcow2, snapshot.json}. Written
// once, appears by one rename and is never changed; every restore maps the one memory file.
//
// All calls but commit_golden() are a few system calls and run in the loop.

#include "image/image_store.hpp"
#include "image/snapshot.hpp"
#include "model/enums.hpp"

#include <string>

namespace wd::image {

// What a guest cannot be given after it has booted.
struct Shape {
    std::uint32_t cpus = 1;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;
    model::Accel accel = model::Accel::tcg;

    std::string name() const; // "2c-512M-8192M-kvm"
    bool operator==(const Shape&) const = default;
};

struct Golden {
    std::filesystem::path folder;
    SnapshotInfo info;
    std::filesystem::path memory() const { return folder / "memory"; }
    std::filesystem::path state() const { return folder / "state"; }
    std::filesystem::path disk() const { return folder / "disk.qcow2"; } // on top of root.raw
};

// Errors of open_snapshot().
Result<Golden> find_golden(const Image& image, const Shape& shape, std::string_view stamp);

// Where one is made; in the images folder, so that a restarted workdird finds what is left of it.
std::filesystem::path golden_staging(const ImageStore& images, const Image& image,
                                     const Shape& shape);

// Makes the finished files in `staging` the golden of that shape, in place of any before; blocks
// for an fsync of all.
Result<void> commit_golden(const std::filesystem::path& staging, const Image& image,
                           const Shape& shape, const SnapshotInfo& info);

// Out of sight by a rename; ImageStore::remove_trash does the slow part. Not an error when it is
// not there.
Result<void> discard_golden(const ImageStore& images, const std::filesystem::path& folder);
// The same for all staging folders.
void discard_golden_staging(const ImageStore& images);

} // namespace wd::image
