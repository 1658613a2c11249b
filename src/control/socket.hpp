#pragma once
// One message with its file descriptors, over AF_UNIX SOCK_SEQPACKET. Never blocks on a
// non-blocking socket.

#include "util/fd.hpp"

#include <span>
#include <string>
#include <vector>

namespace wd::control {

struct Packet {
    std::string text;
    std::vector<Fd> fds; // CLOEXEC
};

// Error: errnum EAGAIN when the peer's queue is full (the message was not sent at all).
Result<void> send_packet(int socket, std::string_view text, std::span<const int> fds = {});

// Error: errnum EAGAIN when there is nothing; unreachable at end of file; invalid_argument for a
// message that is larger than `limit` or carries more than kMaxFds descriptors (all closed).
Result<Packet> receive_packet(int socket, std::size_t limit);

// A listening SOCK_SEQPACKET socket at `path`, non-blocking; a stale one of that path is replaced.
Result<Fd> listen_at(const std::string& path);
// Connects, non-blocking. Error: unreachable when nobody listens.
Result<Fd> connect_to(const std::string& path);

} // namespace wd::control
