#include "agent/port.hpp"

#include "agent/clock.hpp"
#include "agent/console.hpp"
#include "agent/device.hpp"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace wd::agent {
namespace {
constexpr const char* kPortName = "dev.workdir.agent";
constexpr std::size_t kWriteMost = 32 * 1024;
constexpr std::size_t kReadSize = 4096;
constexpr int kReadsPerTurn = 32;
constexpr std::uint32_t kWorthOwnWrite = 4096;
} // namespace

Outcome<Fd> Port::open_device(std::uint64_t deadline) {
    DeviceWatch watch;
    wire::Failure last;
    do {
        auto path = find_port(kPortName);
        if (path) {
            Fd fd(::open(path->c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
            if (fd) {
                return fd;
            }
            path = failure_errno(errno, *path);
        }
        last = std::move(path.error());
    } while (watch.wait(deadline));
    return tl::unexpected(std::move(last));
}

Port::Port(Poller& poller, Fd fd)
    : data_(new std::byte[wire::kHeaderSize + wire::kDataChunk]) { // not zeroed
    auto watched = Watched::create(poller, std::move(fd), EPOLLIN | EPOLLOUT | EPOLLRDHUP, *this);
    if (watched) {
        fd_ = std::move(*watched);
    } else {
        console("%s", watched.error().message.c_str());
    }
}

void Port::on_events(std::uint32_t events) {
    if ((events & EPOLLHUP) != 0) {
        set_connected(false);
        return;
    }
    set_connected(true);
    readable_ = readable_ || (events & EPOLLIN) != 0;
    writable_ = writable_ || (events & EPOLLOUT) != 0;
}

void Port::set_connected(bool connected) {
    if (connected_ == connected) {
        return;
    }
    connected_ = connected;
    if (!connected) {
        // A frame cut in the middle would put whoever comes next out of step.
        dropped_ = true;
        reader_ = {};
        out_.clear();
        sent_ = data_size_ = data_sent_ = 0;
        readable_ = writable_ = ignoring_ = false;
    }
}

Port::Change Port::take_change() {
    if (reported_ && dropped_) {
        dropped_ = reported_ = false;
        return Change::disconnected;
    }
    dropped_ = false;
    if (!reported_ && connected_) {
        reported_ = true;
        return Change::connected;
    }
    return Change::none;
}

void Port::put_data(std::uint32_t channel, wire::Stream stream, std::uint32_t length) {
    wire::put_header(data_.get(), channel, wire::FrameType::data, static_cast<std::uint8_t>(stream),
                     length);
    const std::size_t size = wire::kHeaderSize + length;
    if (out_.empty() && length >= kWorthOwnWrite) {
        data_size_ = size;
    } else {
        // Behind what waits there; small pieces travel together.
        out_.insert(out_.end(), data_.get(), data_.get() + size);
    }
}

bool Port::send_some(const std::byte* data, std::size_t size, std::size_t& sent) {
    while (sent < size && writable_) {
        const ssize_t n = ::write(fd_.get(), data + sent, std::min(size - sent, kWriteMost));
        if (n > 0) {
            sent += static_cast<std::size_t>(n);
        } else if (n == 0 || errno != EINTR) {
            writable_ = false; // EAGAIN; or ENODEV, and then no event will come either
        }
    }
    return sent == size;
}

bool Port::flush() {
    if (!send_some(data_.get(), data_size_, data_sent_)) {
        return false;
    }
    data_size_ = data_sent_ = 0;
    if (!send_some(out_.data(), out_.size(), sent_)) {
        return false;
    }
    out_.clear();
    sent_ = 0;
    return true;
}

bool Port::fill() {
    for (int i = 0; i < kReadsPerTurn && readable_; ++i) {
        const auto room = reader_.prepare(kReadSize);
        const ssize_t n = ::read(fd_.get(), room.data(), room.size());
        if (n > 0) {
            if (!ignoring_) {
                reader_.commit(static_cast<std::size_t>(n));
            }
        } else if (n == 0) {
            set_connected(false);
        } else if (errno != EINTR) {
            readable_ = false;
        }
    }
    return readable_;
}

} // namespace wd::agent
