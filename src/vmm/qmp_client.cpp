#include "vmm/qmp_client.hpp"

#include <cerrno>

#include <sys/socket.h>

namespace wd::vmm {
namespace {

constexpr std::size_t kMaxPending = 64;

} // namespace

Result<std::unique_ptr<QmpClient>> QmpClient::create(const event::Loop& loop, Fd socket,
                                                     Handler handler) {
    std::unique_ptr<QmpClient> client(new QmpClient(std::move(socket), std::move(handler)));
    auto io = event::Io::create(loop, client->socket_.get(), EPOLLIN,
                                [self = client.get()](std::uint32_t e) { self->on_io(e); });
    if (!io) {
        return fail(std::move(io).error());
    }
    client->io_ = std::move(*io);
    return client;
}

Result<void> QmpClient::execute(std::string_view command, Reply reply, std::string_view arguments) {
    if (lost_ || pending_.size() >= kMaxPending) {
        return fail(ErrorCode::limit, "QMP takes no more commands");
    }
    out_ += qmp_command(command, ++last_id_, arguments);
    pending_.push_back({last_id_, std::move(reply)});
    // A broken connection is reported by on_io, from the loop.
    (void)flush();
    return {};
}

Result<void> QmpClient::flush() {
    while (!out_.empty()) {
        const ssize_t n = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            if (errno == EAGAIN) {
                break;
            }
            const int error = errno;
            io_.set_events(EPOLLIN);
            return fail_errno(error, "write to QMP", ErrorCode::unreachable);
        }
        out_.erase(0, static_cast<std::size_t>(n));
    }
    io_.set_events(out_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
    return {};
}

void QmpClient::drain() {
    constexpr int kMostReads = 64; // a megabyte: more than a socket holds
    const std::shared_ptr<bool> alive = alive_;
    for (int i = 0; i < kMostReads && *alive && !lost_; ++i) {
        on_io(EPOLLIN);
    }
}

void QmpClient::on_io(std::uint32_t events) {
    if (lost_) {
        return;
    }
    const std::shared_ptr<bool> alive = alive_;
    Result<void> done;
    if ((events & EPOLLOUT) != 0) {
        done = flush();
    }
    if (done && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        done = read_some();
    }
    if (*alive && !done) {
        lost_ = true;
        io_.reset();
        handler_.on_lost(std::move(done).error());
    }
}

Result<void> QmpClient::read_some() {
    const std::shared_ptr<bool> alive = alive_;
    char buffer[16 * 1024];
    const ssize_t n = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return {};
        }
        return fail_errno(errno, "read from QMP", ErrorCode::unreachable);
    }
    if (n == 0) {
        return fail(ErrorCode::unreachable, "QEMU closed its QMP connection");
    }
    lines_.feed({buffer, static_cast<std::size_t>(n)});
    while (const auto line = lines_.next()) {
        auto done = dispatch(*line);
        if (!*alive) {
            return {};
        }
        if (!done) {
            return done;
        }
    }
    if (lines_.failed()) {
        return fail(ErrorCode::invalid_argument, "QEMU sent an overlong line on QMP");
    }
    return {};
}

Result<void> QmpClient::dispatch(std::string_view line) {
    auto message = parse_qmp(line);
    if (!message) {
        return fail(std::move(message.error()).context("QEMU sent garbage on QMP"));
    }
    if (const auto* greeting = std::get_if<QmpGreeting>(&*message)) {
        if (greeted_) {
            return fail(ErrorCode::invalid_argument, "QEMU greeted twice on QMP");
        }
        greeted_ = true;
        handler_.on_greeting(*greeting);
        return {};
    }
    if (const auto* event = std::get_if<QmpEvent>(&*message)) {
        handler_.on_event(*event);
        return {};
    }
    const QmpReply& reply = std::get<QmpReply>(*message);
    if (pending_.empty() || pending_.front().id != reply.id) {
        return fail(ErrorCode::invalid_argument, "QEMU answered on QMP what was not asked");
    }
    const Reply callback = std::move(pending_.front().reply);
    pending_.pop_front();
    if (callback) {
        callback(reply.good ? Result<void>() : fail(ErrorCode::internal, "QEMU: " + reply.error));
    }
    return {};
}

} // namespace wd::vmm
