#pragma once
// The files of a stopped guest, and snapshot.json beside them: what they fit, and that they are
// whole. A folder with that file in it is complete; nothing in it is changed any more.

#include "util/result.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace wd::image {

struct SnapshotInfo {
    // Everything the snapshot depends on, as text: it is used only where this host's is the same.
    std::string stamp;
    std::string agent_version; // of the agent in it
    std::string kernel_release;
};

// Names of files, below the folder or ("../disk.qcow2") beside it.
using SnapshotFiles = std::vector<std::string>;

// Blocks for an fsync of all. The files must have no writer left.
Result<void> seal_snapshot(const std::filesystem::path& folder, const SnapshotFiles& files,
                           const SnapshotInfo& info);

// Error: not_found when there is none; unsupported when it is of another stamp; invalid_argument
// when it is damaged: a file is missing, or is not as large or as old as it was.
Result<SnapshotInfo> open_snapshot(const std::filesystem::path& folder, const SnapshotFiles& files,
                                   std::string_view stamp);

} // namespace wd::image
