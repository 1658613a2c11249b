#pragma once
// ByteQueue: bytes on their way to a socket. Gives its memory back when it is empty, and grows by
// steps, so that a full queue costs little more than what is in it.

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

namespace wd::shim {

class ByteQueue {
public:
    std::size_t size() const noexcept { return end_ - start_; }
    bool empty() const noexcept { return start_ == end_; }
    std::span<const std::byte> view() const noexcept {
        return {buffer_.get() + start_, end_ - start_};
    }
    void append(std::span<const std::byte> data);
    void consume(std::size_t count); // at most size()
    void clear();

private:
    std::unique_ptr<std::byte[]> buffer_;
    std::size_t capacity_ = 0;
    std::size_t start_ = 0;
    std::size_t end_ = 0;
};

} // namespace wd::shim
