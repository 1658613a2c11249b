#include "util/size.hpp"

#include "util/text.hpp"

#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace wd {
namespace {

constexpr std::string_view kUnits = "BKMGTP";

} // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
    const auto bad = [&](std::string_view why) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{} is not a size ({}); write a number with K, M, G or T, "
                                "for example 512M or 8G",
                                quote(text), why));
    };
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, ec] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
    if (ec != std::errc() || !std::isfinite(value) || value < 0) {
        return bad("no number");
    }
    std::string_view unit(rest, static_cast<std::size_t>(end - rest));
    std::uint64_t factor = 1;
    if (!unit.empty()) {
        const char letter = unit[0] >= 'a' ? static_cast<char>(unit[0] - 'a' + 'A') : unit[0];
        const auto index = kUnits.find(letter);
        const std::string_view tail = unit.substr(1);
        if (index == std::string_view::npos || !(tail.empty() || tail == "iB" || tail == "B") ||
            (letter == 'B' && !tail.empty())) {
            return bad("unknown unit");
        }
        factor = std::uint64_t{1} << (10 * index);
    }
    const double bytes = value * static_cast<double>(factor);
    if (bytes >= static_cast<double>(std::numeric_limits<std::int64_t>::max())) {
        return bad("too large");
    }
    return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
    std::size_t unit = 0;
    auto value = static_cast<double>(bytes);
    while (value >= 1024 && unit + 1 < kUnits.size()) {
        value /= 1024;
        ++unit;
    }
    if (unit == 0) {
        return fmt::format("{}B", bytes);
    }
    const double tenths = std::round(value * 10) / 10;
    if (tenths == std::floor(tenths)) {
        return fmt::format("{:.0f}{}", tenths, kUnits[unit]);
    }
    return fmt::format("{:.1f}{}", tenths, kUnits[unit]);
}

} // namespace wd
