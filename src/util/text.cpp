#include "util/text.hpp"

#include <fmt/format.h>

namespace wd {
namespace {

// Length of the UTF-8 sequence at the start of `text`, 0 where there is none (RFC 3629).
std::size_t sequence_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) {
        return 1;
    }
    std::size_t length = 0;
    unsigned char low = 0x80;
    unsigned char high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf) {
        length = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        length = 3;
        low = lead == 0xe0 ? 0xa0 : 0x80;
        high = lead == 0xed ? 0x9f : 0xbf;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        length = 4;
        low = lead == 0xf0 ? 0x90 : 0x80;
        high = lead == 0xf4 ? 0x8f : 0xbf;
    } else {
        return 0;
    }
    if (text.size() < length || byte(1) < low || byte(1) > high) {
        return 0;
    }
    for (std::size_t i = 2; i < length; ++i) {
        if (byte(i) < 0x80 || byte(i) > 0xbf) {
            return 0;
        }
    }
    return length;
}

std::string escape(std::string_view text, std::size_t limit, bool keep_newlines) {
    std::string out;
    while (!text.empty()) {
        if (out.size() >= limit) {
            out += "…";
            break;
        }
        const std::size_t length = sequence_length(text);
        const auto lead = static_cast<unsigned char>(text[0]);
        // U+0080–U+009F are control characters too: 0xc2 0x80–0x9f.
        const bool control =
            lead < 0x20 || lead == 0x7f ||
            (length == 2 && lead == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0);
        if (keep_newlines && (lead == '\n' || lead == '\t')) {
            out += text[0];
            text.remove_prefix(1);
        } else if (length == 0 || control) {
            out += fmt::format("\\x{:02x}", lead);
            text.remove_prefix(1);
        } else {
            out += text.substr(0, length);
            text.remove_prefix(length);
        }
    }
    return out;
}

} // namespace

std::string quote(std::string_view text, std::size_t limit) {
    return "\"" + escape(text, limit, false) + "\"";
}

std::string printable(std::string_view text, std::size_t limit) {
    return escape(text, limit, true);
}

bool is_valid_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t length = sequence_length(text);
        if (length == 0) {
            return false;
        }
        text.remove_prefix(length);
    }
    return true;
}

} // namespace wd
