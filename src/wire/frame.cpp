#include "wire/frame.hpp"

#include <cstring>

namespace wd::wire {
namespace {

std::uint32_t load_u32(const std::byte* from) {
    return std::to_integer<std::uint32_t>(from[0]) | std::to_integer<std::uint32_t>(from[1]) << 8 |
           std::to_integer<std::uint32_t>(from[2]) << 16 |
           std::to_integer<std::uint32_t>(from[3]) << 24;
}

void store_u32(std::byte* to, std::uint32_t value) {
    for (int i = 0; i < 4; ++i) {
        to[i] = static_cast<std::byte>(value >> (8 * i));
    }
}

bool is_known(std::uint8_t type) {
    return (type >= static_cast<std::uint8_t>(FrameType::hello) &&
            type <= static_cast<std::uint8_t>(FrameType::quiesced)) ||
           (type >= static_cast<std::uint8_t>(FrameType::open) &&
            type <= static_cast<std::uint8_t>(FrameType::error));
}

} // namespace

std::span<std::byte> FrameReader::prepare(std::size_t size) {
    if (capacity_ - end_ < size) {
        const std::size_t held = buffered();
        if (capacity_ < held + size) {
            auto larger = std::make_unique_for_overwrite<std::byte[]>(held + size);
            if (held > 0) {
                std::memcpy(larger.get(), buffer_.get() + start_, held);
            }
            buffer_ = std::move(larger);
            capacity_ = held + size;
        } else {
            std::memmove(buffer_.get(), buffer_.get() + start_, held);
        }
        start_ = 0;
        end_ = held;
    }
    return {buffer_.get() + end_, capacity_ - end_};
}

void FrameReader::commit(std::size_t size) {
    if (violation_ == Violation::none) {
        end_ += size;
    }
}

void FrameReader::feed(std::span<const std::byte> data) {
    if (violation_ != Violation::none || data.empty()) {
        return;
    }
    std::memcpy(prepare(data.size()).data(), data.data(), data.size());
    commit(data.size());
}

std::optional<Frame> FrameReader::next() {
    if (violation_ != Violation::none || buffered() < kHeaderSize) {
        return std::nullopt;
    }
    const std::byte* const head = buffer_.get() + start_;
    const std::uint32_t length = load_u32(head + 4);
    const auto type = std::to_integer<std::uint8_t>(head[8]);
    if (length > kMaxPayload) {
        violation_ = Violation::oversized;
    } else if (!is_known(type)) {
        violation_ = Violation::unknown_type;
    } else if (head[10] != std::byte{0} || head[11] != std::byte{0}) {
        violation_ = Violation::bad_header;
    }
    if (violation_ != Violation::none) {
        buffer_.reset();
        capacity_ = start_ = end_ = 0;
        return std::nullopt;
    }
    if (buffered() < kHeaderSize + length) {
        return std::nullopt;
    }
    start_ += kHeaderSize + length;
    const Frame frame{.channel = load_u32(head),
                      .type = static_cast<FrameType>(type),
                      .flag = std::to_integer<std::uint8_t>(head[9]),
                      .payload = {head + kHeaderSize, length}};
    if (start_ == end_) {
        start_ = end_ = 0; // the view stays good: nothing is written before the next feed
    }
    return frame;
}

void put_header(std::byte* out, std::uint32_t channel, FrameType type, std::uint8_t flag,
                std::uint32_t length) {
    store_u32(out, channel);
    store_u32(out + 4, length);
    out[8] = static_cast<std::byte>(type);
    out[9] = static_cast<std::byte>(flag);
    out[10] = out[11] = std::byte{0};
}

void append_frame(std::vector<std::byte>& out, const Frame& frame) {
    const std::size_t at = out.size();
    out.resize(at + kHeaderSize + frame.payload.size());
    put_header(out.data() + at, frame.channel, frame.type, frame.flag,
               static_cast<std::uint32_t>(frame.payload.size()));
    if (!frame.payload.empty()) {
        std::memcpy(out.data() + at + kHeaderSize, frame.payload.data(), frame.payload.size());
    }
}

void append_credit(std::vector<std::byte>& out, std::uint32_t channel, Stream stream,
                   std::uint32_t bytes) {
    std::byte payload[4];
    store_u32(payload, bytes);
    append_frame(out, {.channel = channel,
                       .type = FrameType::credit,
                       .flag = static_cast<std::uint8_t>(stream),
                       .payload = payload});
}

std::optional<std::uint32_t> parse_credit(std::span<const std::byte> payload) {
    if (payload.size() != 4) {
        return std::nullopt;
    }
    const std::uint32_t bytes = load_u32(payload.data());
    return bytes == 0 ? std::nullopt : std::optional(bytes);
}

std::optional<Stream> parse_stream(std::uint8_t flag) {
    return flag <= static_cast<std::uint8_t>(Stream::err) ? std::optional(static_cast<Stream>(flag))
                                                          : std::nullopt;
}

bool CreditAccount::grant(std::uint32_t bytes) noexcept {
    if (bytes > kWindow - available_) {
        return false;
    }
    available_ += bytes;
    return true;
}

bool CreditAccount::use(std::size_t bytes) noexcept {
    if (bytes > available_) {
        return false;
    }
    available_ -= static_cast<std::uint32_t>(bytes);
    return true;
}

std::string_view to_string(FrameReader::Violation violation) {
    switch (violation) {
    case FrameReader::Violation::none:
        return "none";
    case FrameReader::Violation::unknown_type:
        return "a frame of unknown type";
    case FrameReader::Violation::oversized:
        return "a frame larger than 64 KiB";
    case FrameReader::Violation::bad_header:
        return "a malformed frame header";
    }
    return "";
}

} // namespace wd::wire
