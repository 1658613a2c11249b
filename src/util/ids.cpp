#include "util/ids.hpp"

#include "util/text.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>
#include <sys/random.h>

namespace wd {
namespace {

constexpr std::string_view kPrefix = "sb-";
constexpr std::size_t kRandomLength = 10;
constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz234567";
constexpr std::string_view kUnitPrefix = "workdir-";
constexpr std::string_view kUnitSuffix = ".service";

template <std::size_t N>
std::array<unsigned char, N> random_bytes() {
    std::array<unsigned char, N> bytes{};
    // Up to 256 bytes are never cut short once the pool is ready: getrandom(2).
    if (::getrandom(bytes.data(), N, 0) != static_cast<ssize_t>(N)) {
        std::abort();
    }
    return bytes;
}

bool is_lower_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

} // namespace

std::string new_sandbox_id() {
    std::string id(kPrefix);
    for (const unsigned char byte : random_bytes<kRandomLength>()) {
        id += kAlphabet[byte % kAlphabet.size()];
    }
    return id;
}

bool is_sandbox_id(std::string_view text) {
    return text.size() == kPrefix.size() + kRandomLength && text.starts_with(kPrefix) &&
           text.substr(kPrefix.size()).find_first_not_of(kAlphabet) == std::string_view::npos;
}

std::string new_machine_id() {
    std::string id;
    for (const unsigned char byte : random_bytes<16>()) {
        id += fmt::format("{:02x}", byte);
    }
    return id;
}

Result<void> check_name(std::string_view name, std::string_view what) {
    const auto bad = [&](std::string_view why) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{} {} {}; use 1 to {} of a-z 0-9 . _ -, starting with a letter "
                                "or digit",
                                what, quote(name), why, kMaxNameLength));
    };
    if (name.empty()) {
        return bad("is empty");
    }
    if (name.size() > kMaxNameLength) {
        return bad(fmt::format("has {} characters", name.size()));
    }
    if (!is_lower_or_digit(name[0]) || !std::all_of(name.begin(), name.end(), [](char c) {
            return is_lower_or_digit(c) || c == '.' || c == '_' || c == '-';
        })) {
        return bad("has a character that is not allowed");
    }
    if (is_sandbox_id(name)) {
        return bad("has the form of a sandbox id");
    }
    return {};
}

Result<void> check_label(std::string_view key, std::string_view value) {
    constexpr std::size_t kMaxValue = 255;
    const bool key_good =
        !key.empty() && key.size() <= kMaxNameLength && is_lower_or_digit(key[0]) &&
        std::all_of(key.begin(), key.end(), [](char c) {
            return is_lower_or_digit(c) || c == '.' || c == '_' || c == '-' || c == '/';
        });
    if (!key_good) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("label key {}: use 1 to {} of a-z 0-9 . _ - /, starting with a "
                                "letter or digit",
                                quote(key), kMaxNameLength));
    }
    const bool control = std::any_of(value.begin(), value.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    });
    if (value.size() > kMaxValue || control || !is_valid_utf8(value)) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("value {} of label {}: use at most {} bytes of UTF-8 text without "
                                "control characters",
                                quote(value), quote(key), kMaxValue));
    }
    return {};
}

Result<void> check_env(std::string_view assignment) {
    const auto equals = assignment.find('=');
    if (equals == std::string_view::npos || equals == 0 ||
        assignment.find('\0') != std::string_view::npos) {
        // The text itself stays out of the message: it may be a secret typed in the wrong place.
        return fail(ErrorCode::invalid_argument,
                    "an environment variable is not of the form NAME=VALUE");
    }
    return {};
}

std::string unit_name(std::string_view sandbox_id) {
    return fmt::format("{}{}{}", kUnitPrefix, sandbox_id, kUnitSuffix);
}

std::string sandbox_id_of_unit(std::string_view unit) {
    if (!unit.starts_with(kUnitPrefix) || !unit.ends_with(kUnitSuffix)) {
        return {};
    }
    unit.remove_prefix(kUnitPrefix.size());
    unit.remove_suffix(kUnitSuffix.size());
    return is_sandbox_id(unit) ? std::string(unit) : std::string();
}

} // namespace wd
