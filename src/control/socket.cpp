#include "control/socket.hpp"

#include "control/message.hpp"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace wd::control {
namespace {

constexpr std::size_t kControlSpace = CMSG_SPACE(sizeof(int) * kMaxFds);

Result<sockaddr_un> address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("socket path {} has {} bytes; the limit is {}", path, path.size(),
                                sizeof address.sun_path - 1));
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

Result<Fd> new_socket() {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
        return fail_errno(errno, "create a socket");
    }
    return fd;
}

} // namespace

Result<void> send_packet(int socket, std::string_view text, std::span<const int> fds) {
    if (fds.size() > kMaxFds) {
        return fail(ErrorCode::internal, "too many file descriptors for one message");
    }
    iovec iov{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    alignas(cmsghdr) char control[kControlSpace] = {};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    }
    ssize_t n = 0;
    do {
        n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return fail_errno(errno, "send a control message", ErrorCode::unreachable);
    }
    return {};
}

Result<Packet> receive_packet(int socket, std::size_t limit) {
    Packet packet;
    packet.text.resize(limit);
    iovec iov{.iov_base = packet.text.data(), .iov_len = packet.text.size()};
    alignas(cmsghdr) char control[kControlSpace];
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n = 0;
    do {
        n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return fail_errno(errno, "receive a control message", ErrorCode::unreachable);
    }
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof fd);
            packet.fds.emplace_back(fd);
        }
    }
    if (n == 0) {
        return fail(ErrorCode::unreachable, "the control connection was closed");
    }
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("a control message larger than {} bytes or with more than {} file "
                                "descriptors",
                                limit, kMaxFds));
    }
    packet.text.resize(static_cast<std::size_t>(n));
    return packet;
}

Result<Fd> listen_at(const std::string& path) {
    auto address = address_of(path);
    if (!address) {
        return fail(std::move(address).error());
    }
    auto fd = new_socket();
    if (!fd) {
        return fd;
    }
    (void)::unlink(path.c_str());
    if (::bind(fd->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) < 0 ||
        ::listen(fd->get(), 8) < 0) {
        return fail_errno(errno, fmt::format("listen at {}", path));
    }
    return fd;
}

Result<Fd> connect_to(const std::string& path) {
    auto address = address_of(path);
    if (!address) {
        return fail(std::move(address).error());
    }
    auto fd = new_socket();
    if (!fd) {
        return fd;
    }
    // A Launch with a large environment must fit into the queue as one packet. The kernel doubles
    // the value for its own overhead (socket(7)), and its usual wmem_max of 208 KiB allows it.
    const int size = static_cast<int>(kMaxMessage);
    (void)::setsockopt(fd->get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (::connect(fd->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) < 0) {
        return fail_errno(errno, fmt::format("connect to {}", path), ErrorCode::unreachable);
    }
    return fd;
}

} // namespace wd::control
