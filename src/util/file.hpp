#pragma once
// Small whole-file helpers. All block; none follows a guest's or a user's path.

#include "util/fd.hpp"

#include <cstdint>
#include <filesystem>
#include <string>

namespace wd {

Result<Fd> open_file(const std::filesystem::path& path, int flags, unsigned mode = 0600);

// At most `limit` bytes; a longer file is an error (limit), so that nothing unbounded is read.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t limit);

// Temporary file in the same folder, fsync, rename, fsync of the folder: whole or not at all.
Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view content,
                                   unsigned mode = 0600);

// fsync of a file or folder.
Result<void> sync_path(const std::filesystem::path& path);

struct DiskSpace {
    std::uint64_t total_bytes = 0;
    std::uint64_t free_bytes = 0; // for root: f_bfree would count the reserve, f_bavail does not
};
Result<DiskSpace> disk_space(const std::filesystem::path& path);

// Removes the tree below `path`, and path itself. Not an error when it is not there.
Result<void> remove_tree(const std::filesystem::path& path);

} // namespace wd
