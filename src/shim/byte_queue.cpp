#include "shim/byte_queue.hpp"

#include <algorithm>

namespace wd::shim {
namespace {

constexpr std::size_t kStep = 64 * 1024;
constexpr std::size_t kKept = 4 * 1024; // an empty queue keeps this much

} // namespace

void ByteQueue::append(std::span<const std::byte> data) {
    if (data.empty()) {
        return;
    }
    if (capacity_ - end_ < data.size()) {
        const std::size_t held = size();
        const std::size_t wanted = held + data.size();
        if (capacity_ < wanted) {
            const std::size_t larger =
                std::max({wanted, kKept, std::min(2 * capacity_, capacity_ + kStep)});
            auto buffer = std::make_unique_for_overwrite<std::byte[]>(larger);
            if (held > 0) {
                std::memcpy(buffer.get(), buffer_.get() + start_, held);
            }
            buffer_ = std::move(buffer);
            capacity_ = larger;
        } else {
            std::memmove(buffer_.get(), buffer_.get() + start_, held);
        }
        start_ = 0;
        end_ = held;
    }
    std::memcpy(buffer_.get() + end_, data.data(), data.size());
    end_ += data.size();
}

void ByteQueue::consume(std::size_t count) {
    start_ += std::min(count, size());
    if (empty()) {
        clear();
    }
}

void ByteQueue::clear() {
    start_ = end_ = 0;
    if (capacity_ > kKept) {
        buffer_.reset();
        capacity_ = 0;
    }
}

} // namespace wd::shim
