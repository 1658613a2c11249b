#include "shim/guest_channel.hpp"

#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace wd::shim {
namespace {

constexpr std::size_t kReadSize = 256 * 1024;
constexpr std::size_t kDirect = 4 * 1024; // payloads from here on are worth a system call
constexpr std::size_t kHighWater = 256 * 1024;
constexpr std::size_t kLowWater = 64 * 1024;

} // namespace

Result<std::unique_ptr<GuestChannel>> GuestChannel::create(const event::Loop& loop, Fd socket,
                                                           Handler& handler) {
    std::unique_ptr<GuestChannel> channel(new GuestChannel(loop, std::move(socket), handler));
    auto io = event::Io::create(loop, channel->socket_.get(), EPOLLIN,
                                [self = channel.get()](std::uint32_t e) { self->on_io(e); });
    if (!io) {
        return fail(std::move(io).error());
    }
    channel->io_ = std::move(*io);
    return channel;
}

void GuestChannel::send(const wire::Frame& frame) {
    if (lost_) {
        return;
    }
    if (frame.payload.size() < kDirect) {
        std::array<std::byte, wire::kHeaderSize> header;
        wire::put_header(header.data(), frame.channel, frame.type, frame.flag,
                         static_cast<std::uint32_t>(frame.payload.size()));
        queue_.append(header);
        queue_.append(frame.payload);
        note_queue();
        if (!flush_later_ && (watched_ & EPOLLOUT) == 0) {
            if (auto defer = event::Defer::create(loop_, [this] { flush(); })) {
                flush_later_ = std::move(*defer);
            } else {
                flush();
            }
        }
        return;
    }
    std::array<std::byte, wire::kHeaderSize> header;
    wire::put_header(header.data(), frame.channel, frame.type, frame.flag,
                     static_cast<std::uint32_t>(frame.payload.size()));
    std::size_t sent = 0;
    if ((watched_ & EPOLLOUT) == 0) {
        sent = transmit(header, frame.payload);
    }
    const std::size_t of_header = std::min(sent, header.size());
    queue_.append(std::span(header).subspan(of_header));
    queue_.append(frame.payload.subspan(sent - of_header));
    note_queue();
    update_events();
}

// Queue, header and payload in one system call. What of the queue went is taken off it; returned is
// how much of the other two.
std::size_t GuestChannel::transmit(std::span<const std::byte> header,
                                   std::span<const std::byte> payload) {
    const auto queued = queue_.view();
    std::array<iovec, 3> parts;
    std::size_t count = 0;
    for (const std::span<const std::byte> part : {queued, header, payload}) {
        if (!part.empty()) {
            parts[count++] = {.iov_base = const_cast<std::byte*>(part.data()),
                              .iov_len = part.size()};
        }
    }
    if (count == 0) {
        return 0;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    ssize_t n = 0;
    do {
        n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return 0; // full, or broken: then reading says so
    }
    const std::size_t of_queue = std::min(static_cast<std::size_t>(n), queued.size());
    const std::size_t rest = static_cast<std::size_t>(n) - of_queue;
    queue_.consume(of_queue);
    return rest;
}

void GuestChannel::flush() {
    flush_later_.reset();
    if (lost_) {
        return;
    }
    if (!queue_.empty()) {
        (void)transmit({}, {});
    }
    update_events();
    if (congested_ && queue_.size() <= kLowWater) {
        congested_ = false;
        handler_.on_guest_drained();
    }
}

void GuestChannel::note_queue() {
    congested_ = congested_ || queue_.size() >= kHighWater;
}

void GuestChannel::update_events() {
    const std::uint32_t wanted = queue_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
    if (wanted != watched_ && !lost_) {
        watched_ = wanted;
        io_.set_events(wanted);
    }
}

void GuestChannel::on_io(std::uint32_t events) {
    if ((events & EPOLLOUT) != 0) {
        flush();
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        (void)read_some();
    }
}

void GuestChannel::drain() {
    for (int i = 0; i < 64 && read_some(); ++i) {
    }
}

bool GuestChannel::read_some() {
    if (lost_) {
        return false;
    }
    const auto room = reader_.prepare(kReadSize);
    const ssize_t n = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (n <= 0) {
        lose("the agent's channel was closed", false);
        return false;
    }
    reader_.commit(static_cast<std::size_t>(n));
    while (const auto frame = reader_.next()) {
        handler_.on_guest_frame(*frame);
        if (lost_) {
            return false; // the handler has closed it
        }
    }
    if (reader_.violation() != wire::FrameReader::Violation::none) {
        lose(fmt::format("the agent sent {}", wire::to_string(reader_.violation())), true);
        return false;
    }
    handler_.on_guest_batch();
    flush();
    return !lost_;
}

void GuestChannel::lose(const std::string& why, bool violation) {
    close();
    handler_.on_guest_lost(why, violation);
}

void GuestChannel::close() {
    lost_ = true;
    io_.reset();
    flush_later_.reset();
    queue_.clear();
}

} // namespace wd::shim
