#include "agent/outcome.hpp"

#include <cstring>

namespace wd::agent {

tl::unexpected<wire::Failure> failure(FailureKind kind, int errnum, std::string message) {
    return tl::unexpected(
        wire::Failure{kind, static_cast<std::uint64_t>(errnum), std::move(message)});
}

tl::unexpected<wire::Failure> failure_errno(int errnum, std::string_view what) {
    return failure(FailureKind::other, errnum, std::string(what) + ": " + errno_text(errnum));
}

std::string errno_text(int errnum) {
    // Not strerror(3): it would pull message catalogues into the static binary.
    const char* const text = ::strerrordesc_np(errnum);
    return text != nullptr ? std::string(text) : "errno " + std::to_string(errnum);
}

std::string quote(std::string_view text) {
    constexpr std::size_t kLongest = 80;
    constexpr char kHex[] = "0123456789abcdef";
    const bool cut = text.size() > kLongest;
    if (cut) {
        std::size_t end = kLongest;
        while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
            --end; // not in the middle of a UTF-8 character
        }
        text = text.substr(0, end);
    }
    std::string out = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f || c == '"' || c == '\\') {
            out += "\\x";
            out += kHex[byte >> 4];
            out += kHex[byte & 15];
        } else {
            out += c;
        }
    }
    out += cut ? "...\"" : "\"";
    return out;
}

} // namespace wd::agent
