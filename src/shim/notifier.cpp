#include "shim/notifier.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include <sys/socket.h>
#include <sys/un.h>

namespace wd::shim {

Notifier::Notifier() {
    const char* const path = std::getenv("NOTIFY_SOCKET");
    // "@" stands for the abstract namespace: sd_notify(3).
    if (path != nullptr && (path[0] == '/' || path[0] == '@') &&
        std::strlen(path) < sizeof(sockaddr_un::sun_path)) {
        address_ = path;
        socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    }
}

bool Notifier::send(std::string_view state) {
    if (!socket_) {
        return true;
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, address_.data(), address_.size());
    if (address.sun_path[0] == '@') {
        address.sun_path[0] = '\0';
    }
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
    const ssize_t n = ::sendto(socket_.get(), state.data(), state.size(), MSG_NOSIGNAL,
                               reinterpret_cast<const sockaddr*>(&address), size);
    return n >= 0 || errno != EAGAIN;
}

} // namespace wd::shim
