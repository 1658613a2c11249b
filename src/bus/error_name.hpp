#pragma once
// What the error names of others mean to us. No sdbus-c++ here: wd, which speaks plain sd-bus,
// uses this too.

#include "util/error.hpp"

#include <string_view>

namespace wd::bus {

// Ours by the table of util/error.hpp; the bus's own, systemd's and errno names (System.Error.*) by
// what they mean; `internal` for the rest. `errnum` is what sd_bus_error_get_errno(3) says. The
// message keeps the text, and for a name that is not ours the name too.
Error error_from_name(std::string_view name, std::string_view text);

} // namespace wd::bus
