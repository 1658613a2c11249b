#include "shim/client_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/socket.h>
#include <sys/uio.h>

namespace wd::shim {
namespace {

constexpr std::size_t kDirect = 4 * 1024;   // payloads from here on are worth a system call
constexpr std::size_t kInOrder = 64 * 1024; // of small frames kept in the order they came

// -1 when the socket is full, -2 when it is broken.
ssize_t send_two(int fd, std::span<const std::byte> one, std::span<const std::byte> two) {
    std::array<iovec, 2> parts{{
        {.iov_base = const_cast<std::byte*>(one.data()), .iov_len = one.size()},
        {.iov_base = const_cast<std::byte*>(two.data()), .iov_len = two.size()},
    }};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    ssize_t n = 0;
    do {
        n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n >= 0 ? n : errno == EAGAIN ? -1 : -2;
}

} // namespace

bool ClientQueue::backlog() const {
    return body_ > 0 || !slots_[0].bytes.empty() || !slots_[1].bytes.empty();
}

bool ClientQueue::empty() const {
    return first_.empty() && !backlog() && !slots_[0].eof && !slots_[1].eof && credit_ == 0 &&
           !last_;
}

void ClientQueue::clear() {
    first_.clear();
    body_ = 0;
    for (Slot& each : slots_) {
        each.bytes.clear();
        each.eof = false;
    }
    credit_ = 0;
    last_.reset();
}

void ClientQueue::control(wire::FrameType type, std::span<const std::byte> payload,
                          std::uint8_t flag) {
    std::vector<std::byte> frame;
    wire::append_frame(frame, {.type = type, .flag = flag, .payload = payload});
    first_.append(frame);
}

void ClientQueue::credit(std::uint32_t bytes) {
    credit_ += bytes;
}

void ClientQueue::data(int fd, wire::Stream stream, std::span<const std::byte> payload) {
    Slot& into = slot(stream);
    const bool direct = first_.empty() && payload.size() >= kDirect;
    if (backlog() || (!direct && first_.size() >= kInOrder)) {
        into.bytes.append(payload);
        return;
    }
    std::array<std::byte, wire::kHeaderSize> header;
    wire::put_header(header.data(), 0, wire::FrameType::data, static_cast<std::uint8_t>(stream),
                     static_cast<std::uint32_t>(payload.size()));
    std::size_t sent = 0;
    if (direct) {
        const ssize_t n = send_two(fd, header, payload);
        sent = n > 0 ? static_cast<std::size_t>(n) : 0; // broken: flush() will say so
        if (sent == header.size() + payload.size()) {
            return;
        }
    } else if (payload.size() < kDirect) {
        first_.append(header);
        first_.append(payload);
        return;
    }
    const std::size_t of_header = std::min(sent, header.size());
    first_.append(std::span(header).subspan(of_header));
    into.bytes.append(payload.subspan(sent - of_header));
    body_ = into.bytes.size();
    body_slot_ = stream == wire::Stream::err ? 1 : 0;
}

void ClientQueue::eof(wire::Stream stream) {
    slot(stream).eof = true;
}

void ClientQueue::last(wire::FrameType type, std::span<const std::byte> payload) {
    std::vector<std::byte> frame;
    wire::append_frame(frame, {.type = type, .payload = payload});
    last_ = std::move(frame);
}

bool ClientQueue::compose() {
    if (credit_ > 0) {
        std::vector<std::byte> frame;
        wire::append_credit(frame, 0, wire::Stream::in, std::exchange(credit_, 0));
        first_.append(frame);
        return true;
    }
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const std::size_t at = (turn_ + i) % slots_.size();
        Slot& next = slots_[at];
        std::array<std::byte, wire::kHeaderSize> header;
        if (!next.bytes.empty()) {
            body_ = std::min(next.bytes.size(), wire::kMaxPayload);
            body_slot_ = at;
            turn_ = (at + 1) % slots_.size();
            wire::put_header(header.data(), 0, wire::FrameType::data,
                             static_cast<std::uint8_t>(stream_of(at)),
                             static_cast<std::uint32_t>(body_));
            first_.append(header);
            return true;
        }
        if (std::exchange(next.eof, false)) {
            wire::put_header(header.data(), 0, wire::FrameType::eof,
                             static_cast<std::uint8_t>(stream_of(at)), 0);
            first_.append(header);
            return true;
        }
    }
    if (last_) {
        first_.append(*last_);
        last_.reset();
        return true;
    }
    return false;
}

ClientQueue::Flushed ClientQueue::flush(int fd) {
    while (!first_.empty() || body_ > 0 || compose()) {
        // Small frames are gathered as long as no data waits behind them.
        while (body_ == 0 && first_.size() < kInOrder && compose()) {
        }
        ByteQueue& bytes = slots_[body_slot_].bytes;
        const ssize_t n = send_two(fd, first_.view(), bytes.view().first(body_));
        if (n < 0) {
            return n == -1 ? Flushed::blocked : Flushed::broken;
        }
        const std::size_t of_first = std::min(static_cast<std::size_t>(n), first_.size());
        first_.consume(of_first);
        const std::size_t of_body = static_cast<std::size_t>(n) - of_first;
        bytes.consume(of_body);
        body_ -= of_body;
    }
    return Flushed::all;
}

} // namespace wd::shim
