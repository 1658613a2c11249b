#pragma once
// What a snapshot fits, as text: it is used only where the same text comes out. Files are told by
// size and time: packages replace files, they do not rewrite them.

#include "config/config.hpp"
#include "image/golden.hpp"

#include <string>

namespace wd::sandbox {

// Of a parked guest: QEMU, the machine it emulates, the host's processor and kernel. Not of workdir
// or the guest's kernel: those are in its memory.
std::string machine_stamp(const config::Config& config, const image::Shape& shape);

// Of a golden snapshot: that, and all that a cold boot would bring up now.
std::string golden_stamp(const config::Config& config, const image::Image& image,
                         const image::Shape& shape);

} // namespace wd::sandbox
