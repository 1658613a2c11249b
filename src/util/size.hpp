#pragma once
// Byte sizes as people write them: "512M", "8G", "1.5T" (powers of 1024, optional "iB"/"B").

#include "util/result.hpp"

#include <cstdint>
#include <string>

namespace wd {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// A plain number is bytes. Error: invalid_argument, naming the text and the form expected.
Result<std::uint64_t> parse_size(std::string_view text);

// The largest unit that needs at most one decimal: "512M", "1.5G", "17K".
std::string format_size(std::uint64_t bytes);

} // namespace wd
