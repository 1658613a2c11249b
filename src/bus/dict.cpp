#include "bus/dict.hpp"

#include "util/text.hpp"

#include <array>

#include <fmt/format.h>

namespace wd::bus {

std::string type_in_words(std::string_view signature) {
    struct Word {
        std::string_view signature;
        std::string_view words;
    };
    static constexpr std::array kWords{
        Word{"s", "a string"},
        Word{"b", "a boolean"},
        Word{"y", "a byte"},
        Word{"i", "a signed 32-bit number"},
        Word{"u", "an unsigned 32-bit number"},
        Word{"x", "a signed 64-bit number"},
        Word{"t", "an unsigned 64-bit number"},
        Word{"d", "a floating-point number"},
        Word{"o", "an object path"},
        Word{"h", "a file descriptor"},
        Word{"as", "a list of strings"},
        Word{"a{ss}", "a dictionary of strings"},
        Word{"a{sv}", "a dictionary"},
    };
    for (const auto& word : kWords) {
        if (word.signature == signature) {
            return fmt::format("{} ({})", word.words, signature);
        }
    }
    return std::string(signature);
}

void DictReader::wrong_type(const std::string& key, std::string_view wanted, std::string_view got) {
    if (!first_error_) {
        first_error_ = Error{ErrorCode::invalid_argument, 0,
                             fmt::format("{} {} must be {}, not {}", what_, quote(key),
                                         type_in_words(wanted), type_in_words(printable(got, 60)))};
    }
}

void DictReader::missing(const std::string& key) {
    if (!first_error_) {
        first_error_ = Error{ErrorCode::invalid_argument, 0,
                             fmt::format("{} {} is missing", what_, quote(key))};
    }
}

Result<void> DictReader::finish() const {
    if (first_error_) {
        return fail(*first_error_);
    }
    for (const auto& [key, value] : dict_) {
        if (known_.contains(key)) {
            continue;
        }
        if (known_.empty()) {
            return fail(ErrorCode::invalid_argument,
                        fmt::format("unknown {} {}; there are none", what_, quote(key)));
        }
        return fail(ErrorCode::invalid_argument, fmt::format("unknown {} {}; known are: {}", what_,
                                                             quote(key), fmt::join(known_, ", ")));
    }
    return {};
}

} // namespace wd::bus
