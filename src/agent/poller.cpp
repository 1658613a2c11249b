#include "agent/poller.hpp"

#include <cerrno>

namespace wd::agent {

Outcome<Poller> Poller::create() {
    Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll) {
        return failure_errno(errno, "epoll_create1");
    }
    return Poller(std::move(epoll));
}

Outcome<void> Poller::add(int fd, std::uint32_t events, EventHandler& handler) {
    epoll_event event{};
    event.events = events | EPOLLET;
    event.data.ptr = &handler;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) < 0) {
        return failure_errno(errno, "epoll_ctl");
    }
    return {};
}

void Poller::remove(int fd, const EventHandler& handler) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    for (int i = batch_at_; i < batch_size_; ++i) {
        auto& event = batch_[static_cast<std::size_t>(i)];
        if (event.data.ptr == &handler) {
            event.data.ptr = nullptr; // already fetched, and its handler may be gone
        }
    }
}

void Poller::wait(int timeout_ms) {
    const int n =
        ::epoll_wait(epoll_.get(), batch_.data(), static_cast<int>(batch_.size()), timeout_ms);
    batch_size_ = n < 0 ? 0 : n;
    for (batch_at_ = 0; batch_at_ < batch_size_;) {
        const epoll_event event = batch_[static_cast<std::size_t>(batch_at_++)];
        if (event.data.ptr != nullptr) {
            static_cast<EventHandler*>(event.data.ptr)->on_events(event.events);
        }
    }
    batch_size_ = batch_at_ = 0;
}

Outcome<Watched> Watched::create(Poller& poller, Fd fd, std::uint32_t events,
                                 EventHandler& handler) {
    if (auto added = poller.add(fd.get(), events, handler); !added) {
        return tl::unexpected(std::move(added.error()));
    }
    Watched watched;
    watched.poller_ = &poller;
    watched.fd_ = std::move(fd);
    watched.handler_ = &handler;
    return watched;
}

Fd Watched::release() {
    if (fd_ && poller_ != nullptr) {
        poller_->remove(fd_.get(), *handler_);
    }
    poller_ = nullptr;
    return std::move(fd_);
}

} // namespace wd::agent
