#pragma once
// image.toml of an image version, written by workdir-image-build. Keys that are not known here are
// left alone: an older workdird reads what a newer builder wrote.

#include "util/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wd::config {

struct ImageManifest {
    std::string name;
    std::string version;
    std::string suite;
    std::string recipe_hash;
    std::uint64_t created_us = 0;      // CLOCK_REALTIME
    std::uint64_t size_bytes = 0;      // of the file system
    std::uint64_t allocated_bytes = 0; // on disk
    std::vector<std::string> packages; // "name version"
};

// Error: invalid_argument.
Result<ImageManifest> parse_image_manifest(std::string_view text, std::string_view file_name);

} // namespace wd::config
