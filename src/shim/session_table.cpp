#include "shim/session_table.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <utility>

namespace wd::shim {
namespace {

// A fresh socket takes this much without being read.
void refuse(const Fd& client, const wire::Failure& failure) {
    std::vector<std::byte> frame;
    const wire::Bytes payload = wire::encode(failure);
    wire::append_frame(frame, {.type = wire::FrameType::error, .payload = payload});
    (void)::send(client.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)::shutdown(client.get(), SHUT_RDWR);
}

wire::Failure other(std::string message) {
    return {.kind = wire::Failure::Kind::other, .message = std::move(message)};
}

} // namespace

std::uint32_t SessionTable::next_channel() {
    do {
        ++last_channel_;
    } while (last_channel_ == 0 || sessions_.contains(last_channel_));
    return last_channel_;
}

void SessionTable::open(Fd client, Fd request) {
    if (guest_ == nullptr) {
        refuse(client, closed_);
        return;
    }
    if (sessions_.size() >= kMaxSessions) {
        refuse(client, {.kind = wire::Failure::Kind::limit,
                        .message = fmt::format("the sandbox has {} sessions, the limit; end one "
                                               "first",
                                               sessions_.size())});
        return;
    }
    struct stat status {};
    if (::fstat(request.get(), &status) < 0 || !S_ISREG(status.st_mode)) {
        refuse(client, other("the request is not a file"));
        return;
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size == 0 || size > wire::kMaxExecRequest) {
        refuse(client, {.kind = wire::Failure::Kind::limit,
                        .message = fmt::format("the command and its environment take {} bytes; the "
                                               "limit is {}",
                                               size, wire::kMaxExecRequest)});
        return;
    }
    if (auto done = set_nonblocking(client.get()); !done) {
        refuse(client, other(done.error().message));
        return;
    }
    const std::uint32_t channel = next_channel();
    auto session = Session::create(
        loop_, *guest_, channel,
        {.client = std::move(client), .request = std::move(request), .request_size = size},
        [this, channel] { retire(channel); });
    if (!session) {
        return; // no memory or no descriptors: the client sees the end of file
    }
    sessions_.emplace(channel, std::move(*session));
    opening_.push_back(channel);
    send_opens();
    on_change_();
}

void SessionTable::send_opens() {
    while (guest_ != nullptr && !opening_.empty() && !guest_->congested()) {
        const auto at = sessions_.find(opening_.front());
        if (at == sessions_.end() || !at->second->opening()) {
            opening_.pop_front();
            continue;
        }
        at->second->send_open_piece();
    }
}

void SessionTable::on_guest_frame(const wire::Frame& frame) {
    // A channel that is not in the table has ended here, and the agent did not know yet.
    if (const auto at = sessions_.find(frame.channel); at != sessions_.end()) {
        at->second->on_agent_frame(frame);
        if (touched_.empty() || touched_.back() != frame.channel) {
            touched_.push_back(frame.channel);
        }
    }
}

void SessionTable::on_guest_batch() {
    for (const std::uint32_t channel : std::exchange(touched_, {})) {
        if (const auto at = sessions_.find(channel); at != sessions_.end()) {
            at->second->update();
        }
    }
}

void SessionTable::on_guest_drained() {
    send_opens();
    // update() may end a session, which takes it out of the map.
    for (auto at = sessions_.begin(); at != sessions_.end();) {
        Session& session = *(at++)->second;
        session.update();
    }
}

void SessionTable::close_all(wire::Failure failure) {
    closed_ = std::move(failure);
    guest_ = nullptr;
    opening_.clear();
    for (auto at = sessions_.begin(); at != sessions_.end();) {
        Session& session = *(at++)->second;
        session.fail(closed_);
    }
}

void SessionTable::retire(std::uint32_t channel) {
    const auto at = sessions_.find(channel);
    if (at == sessions_.end()) {
        return;
    }
    // It is in one of its own functions now.
    retired_.push_back(std::move(at->second));
    sessions_.erase(at);
    if (clean_up_) {
        return;
    }
    auto defer = event::Defer::create(loop_, [this] {
        clean_up_.reset();
        retired_.clear();
        on_change_();
    });
    if (defer) {
        clean_up_ = std::move(*defer);
    }
}

} // namespace wd::shim
