#pragma once
// Small files of the guest, read and written by pid 1.

#include "agent/outcome.hpp"

#include <string>
#include <string_view>

namespace wd::agent {

// Regular files only (a fifo would block), at most `limit` bytes; errnum EFBIG beyond that.
Outcome<std::string> read_small_file(const char* path, std::size_t limit);

// Into an existing file of proc, sysfs or cgroupfs, with one write.
Outcome<void> write_control(const char* path, std::string_view text);
Outcome<void> write_control_at(int folder, const char* path, std::string_view text);

// Makes the file have this content, if it differs. A regular file is written in place, which costs
// no metadata and is done again at the next start should this one end meanwhile; anything else that
// is there (a link, a fifo) is replaced.
Outcome<void> update_file(const char* path, std::string_view text, unsigned mode);

// \040 and the like in /proc/self/mounts, proc(5).
std::string unescape_mount(std::string_view text);

} // namespace wd::agent
