#include "vmm/line_reader.hpp"

namespace wd::vmm {

void LineReader::feed(std::string_view data) {
    if (failed_) {
        return;
    }
    buffer_.erase(0, start_);
    scanned_ -= start_;
    start_ = 0;
    buffer_.append(data);
}

std::optional<std::string_view> LineReader::next() {
    while (!failed_) {
        const std::size_t end = buffer_.find('\n', scanned_);
        const bool whole = end != std::string::npos;
        if (dropping_) {
            start_ = scanned_ = whole ? end + 1 : buffer_.size();
            dropping_ = !whole;
            if (!whole) {
                return std::nullopt;
            }
            continue;
        }
        const std::size_t length = (whole ? end : buffer_.size()) - start_;
        if (length > limit_) {
            if (overlong_ == Overlong::fail) {
                failed_ = true;
                buffer_.clear();
                start_ = scanned_ = 0;
                return std::nullopt;
            }
            const std::string_view line = std::string_view(buffer_).substr(start_, limit_);
            start_ = scanned_ = whole ? end + 1 : buffer_.size();
            dropping_ = !whole;
            return line;
        }
        if (!whole) {
            scanned_ = buffer_.size();
            return std::nullopt;
        }
        std::string_view line = std::string_view(buffer_).substr(start_, length);
        if (line.ends_with('\r')) {
            line.remove_suffix(1);
        }
        start_ = scanned_ = end + 1;
        return line;
    }
    return std::nullopt;
}

} // namespace wd::vmm
