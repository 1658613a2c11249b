#pragma once
// Names and ids: what is valid, and new random ones.

#include "util/result.hpp"

#include <string>
#include <string_view>

namespace wd {

// `sb-` and 10 characters of a-z2-7 (50 bits from getrandom(2)): a unit name part, a DNS label and
// a file name as it stands, an object path element after escaping.
std::string new_sandbox_id();
bool is_sandbox_id(std::string_view text);

// 32 hex digits, for machine-id(5).
std::string new_machine_id();

// Names of sandboxes and images: 1–63 characters of a-z 0-9 . _ -, starting with a letter or digit,
// and not of the form of an id. `what` goes into the message ("sandbox name").
inline constexpr std::size_t kMaxNameLength = 63;
Result<void> check_name(std::string_view name, std::string_view what);

// Label keys: as names, and also '/'. Values: at most 255 bytes of UTF-8 without control
// characters.
Result<void> check_label(std::string_view key, std::string_view value);

// NAME=VALUE as execve(2) takes it: NAME not empty, no '=' or NUL in it; VALUE without NUL.
Result<void> check_env(std::string_view assignment);

// workdir-<id>.service
std::string unit_name(std::string_view sandbox_id);
// The id in a unit name of that form, else empty.
std::string sandbox_id_of_unit(std::string_view unit);

} // namespace wd
