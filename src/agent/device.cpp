#include "agent/device.hpp"

#include "agent/clock.hpp"

#include <algorithm>
#include <cerrno>

#include <dirent.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace wd::agent {

DeviceWatch::DeviceWatch()
    : socket_(
          ::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT)) {
    sockaddr_nl address{};
    address.nl_family = AF_NETLINK;
    address.nl_groups = 1; // the kernel's own events
    if (socket_ && ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address)) {
        socket_.reset();
    }
}

bool DeviceWatch::wait(std::uint64_t deadline) {
    const std::uint64_t now = boot_ns();
    if (now >= deadline) {
        return false;
    }
    std::uint64_t left_ms = (deadline - now) / kMillisecond + 1;
    if (!socket_) {
        left_ms = std::min<std::uint64_t>(left_ms, 10);
    }
    pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, static_cast<int>(std::min<std::uint64_t>(left_ms, 60'000)));
    char event[4096];
    while (socket_ && ::recv(socket_.get(), event, sizeof event, 0) > 0) {
    }
    return true;
}

Outcome<std::string> find_port(std::string_view name) {
    constexpr const char* kPorts = "/sys/class/virtio-ports";
    DIR* const ports = ::opendir(kPorts);
    if (ports == nullptr) {
        return failure_errno(errno, kPorts);
    }
    std::string found;
    while (const dirent* const entry = ::readdir(ports)) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        const std::string path = std::string(kPorts) + "/" + entry->d_name + "/name";
        const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        char text[256];
        const ssize_t n = file ? ::read(file.get(), text, sizeof text) : -1;
        if (n > 0) {
            std::string_view value(text, static_cast<std::size_t>(n));
            while (!value.empty() && value.back() == '\n') {
                value.remove_suffix(1);
            }
            if (value == name) {
                found = std::string("/dev/") + entry->d_name;
                break;
            }
        }
    }
    ::closedir(ports);
    if (found.empty()) {
        return failure(FailureKind::other, ENOENT, "no virtio-serial port of that name");
    }
    return found;
}

} // namespace wd::agent
