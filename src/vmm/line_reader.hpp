#pragma once
// Cuts a byte stream into lines of bounded size.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace wd::vmm {

class LineReader {
public:
    enum class Overlong {
        fail, // the stream is broken from there on
        cut,  // the rest of that line is dropped
    };
    LineReader(std::size_t limit, Overlong overlong) : limit_(limit), overlong_(overlong) {}

    // Bytes behind a failure are dropped. Holds at most one feed() and `limit` bytes.
    void feed(std::string_view data);
    // The next line without its "\n" or "\r\n", valid until the next call; nullopt: none is whole.
    std::optional<std::string_view> next();
    // What has no end yet; for the last words of a stream that has ended.
    std::string_view rest() const { return std::string_view(buffer_).substr(start_); }
    bool failed() const noexcept { return failed_; }

private:
    std::size_t limit_;
    Overlong overlong_;
    std::string buffer_;
    std::size_t start_ = 0;   // of the first line not handed out
    std::size_t scanned_ = 0; // no newline before this
    bool dropping_ = false;
    bool failed_ = false;
};

} // namespace wd::vmm
