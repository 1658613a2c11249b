#include "shim/control_server.hpp"

#include "util/log.hpp"

#include <cerrno>

#include <fmt/format.h>
#include <sys/socket.h>

namespace wd::shim {
namespace {

// A run has about six events; a daemon that lets so many lie is not reading at all.
constexpr std::size_t kMaxQueue = 64;
constexpr int kRequestsPerWakeup = 16;

} // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::create(const event::Loop& loop, Fd listener,
                                                             uid_t trusted, Handler handler) {
    int listening = 0;
    int type = 0;
    socklen_t size = sizeof listening;
    if (::getsockopt(listener.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0 ||
        ::getsockopt(listener.get(), SOL_SOCKET, SO_TYPE, &type, &size) < 0 || listening == 0 ||
        type != SOCK_SEQPACKET) {
        return fail(ErrorCode::invalid_argument,
                    "standard input is not a listening SOCK_SEQPACKET socket; workdird starts this "
                    "program, it is of no use by itself");
    }
    if (auto done = set_nonblocking(listener.get()); !done) {
        return fail(std::move(done).error());
    }
    std::unique_ptr<ControlServer> server(
        new ControlServer(loop, std::move(listener), trusted, std::move(handler)));
    auto io = event::Io::create(loop, server->listener_.get(), EPOLLIN,
                                [self = server.get()](std::uint32_t) { self->on_listener(); });
    if (!io) {
        return fail(std::move(io).error());
    }
    server->listener_io_ = std::move(*io);
    return server;
}

void ControlServer::on_listener() {
    Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer) {
        return; // it has gone again
    }
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0 ||
        credentials.uid != trusted_) {
        log::warning(fmt::format("refused a control connection of uid {}", credentials.uid));
        return;
    }
    auto io = event::Io::create(loop_, peer.get(), EPOLLIN,
                                [this](std::uint32_t events) { on_connection(events); });
    if (!io) {
        log::error(io.error().message);
        return;
    }
    drop();
    connection_ = std::move(peer);
    connection_io_ = std::move(*io);
    handler_.on_connected();
}

void ControlServer::drop() {
    connection_io_.reset();
    connection_.reset();
    queue_.clear();
}

void ControlServer::on_connection(std::uint32_t events) {
    if ((events & EPOLLOUT) != 0) {
        flush();
    }
    if (connection_ && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        receive();
    }
}

void ControlServer::receive() {
    for (int i = 0; i < kRequestsPerWakeup && connection_; ++i) {
        auto packet = control::receive_packet(connection_.get(), control::kMaxMessage);
        if (!packet) {
            if (packet.error().errnum == EAGAIN) {
                return;
            }
            if (packet.error().code == ErrorCode::invalid_argument) {
                log::error(packet.error().message);
                continue;
            }
            drop();
            return;
        }
        auto request = control::decode_request(packet->text);
        if (!request) {
            log::error("a request that cannot be read: " + request.error().message);
            continue;
        }
        handler_.on_request(std::move(*request), std::move(packet->fds));
    }
}

void ControlServer::send(const control::Event& event) {
    if (!connection_) {
        return;
    }
    queue_.push_back(control::encode(event));
    flush();
    if (queue_.size() > kMaxQueue) {
        log::warning("workdird does not read; its connection is dropped");
        drop();
    }
}

void ControlServer::flush() {
    while (connection_ && !queue_.empty()) {
        auto sent = control::send_packet(connection_.get(), queue_.front());
        if (!sent && sent.error().errnum == EAGAIN) {
            connection_io_.set_events(EPOLLIN | EPOLLOUT);
            return;
        }
        if (!sent) {
            // Requests it sent before it went may still be in the socket; receive() drops it.
            queue_.clear();
            break;
        }
        queue_.pop_front();
    }
    if (connection_io_) {
        connection_io_.set_events(EPOLLIN);
    }
}

} // namespace wd::shim
