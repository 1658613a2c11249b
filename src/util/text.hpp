#pragma once
// Text from outside on its way to a person: cut, and without control characters.

#include <cstddef>
#include <string>
#include <string_view>

namespace wd {

// "text" in double quotes, control and non-UTF-8 bytes as \xNN, cut with … after `limit` bytes.
std::string quote(std::string_view text, std::size_t limit = 60);

// Like quote but without the quotes, and newlines kept: for console excerpts.
std::string printable(std::string_view text, std::size_t limit);

bool is_valid_utf8(std::string_view text);

} // namespace wd
