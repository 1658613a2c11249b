#include "shim/session.hpp"

#include "util/text.hpp"

#include <array>
#include <cerrno>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace wd::shim {
namespace {

constexpr std::size_t kReadSize = 128 * 1024;
constexpr std::uint8_t kHighestSignal = 64;

using wire::FrameType;
using wire::Stream;

// stdout or stderr, as an index.
std::optional<std::size_t> output_index(std::uint8_t flag) {
    const auto stream = wire::parse_stream(flag);
    if (!stream || *stream == Stream::in) {
        return std::nullopt;
    }
    return *stream == Stream::err ? 1 : 0;
}

bool is_input(std::uint8_t flag) {
    return wire::parse_stream(flag) == Stream::in;
}

} // namespace

Result<std::unique_ptr<Session>> Session::create(const event::Loop& loop, GuestChannel& guest,
                                                 std::uint32_t channel, Ends ends,
                                                 std::function<void()> over) {
    std::unique_ptr<Session> session(new Session(guest, channel, std::move(ends), std::move(over)));
    auto io = event::Io::create(loop, session->ends_.client.get(), 0,
                                [self = session.get()](std::uint32_t e) { self->on_io(e); });
    if (!io) {
        return wd::fail(std::move(io).error());
    }
    session->io_ = std::move(*io);
    return session;
}

void Session::to_agent(FrameType type, std::uint8_t flag, std::span<const std::byte> payload) {
    guest_.send({.channel = channel_, .type = type, .flag = flag, .payload = payload});
}

void Session::send_open_piece() {
    if (state_ != State::opening) {
        return;
    }
    std::array<std::byte, wire::kMaxPayload> piece;
    const std::size_t left = ends_.request_size - request_sent_;
    const std::size_t wanted = std::min(left, piece.size());
    const ssize_t n =
        ::pread(ends_.request.get(), piece.data(), wanted, static_cast<off_t>(request_sent_));
    if (n < 0 || static_cast<std::size_t>(n) != wanted) {
        // The agent holds part of a request.
        if (request_sent_ > 0) {
            to_agent(FrameType::close);
        }
        fail({.kind = wire::Failure::Kind::other, .message = "the request cannot be read"});
        return;
    }
    request_sent_ += wanted;
    const bool more = request_sent_ < ends_.request_size;
    to_agent(FrameType::open, more ? wire::kMore : 0, std::span(piece).first(wanted));
    if (!more) {
        ends_.request.reset();
        state_ = State::open;
        update();
    }
}

// ---- from the client

void Session::on_io(std::uint32_t events) {
    if ((events & EPOLLIN) != 0 && (watched_ & EPOLLIN) != 0) {
        read_client();
    } else if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
        if ((watched_ & EPOLLIN) != 0) {
            read_client();
        } else if (state_ != State::finishing) {
            // It cannot be read now and would only wake us again and again. update() turns it on.
            watching_ = false;
            io_.set_enabled(false);
            return;
        }
    }
    if (state_ != State::over) {
        update();
    }
}

void Session::read_client() {
    const auto room = reader_.prepare(kReadSize);
    const ssize_t n = ::recv(ends_.client.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        to_agent(FrameType::close);
        guest_.flush();
        end();
        return;
    }
    reader_.commit(static_cast<std::size_t>(n));
    while (state_ == State::open) {
        const auto frame = reader_.next();
        if (!frame) {
            break;
        }
        on_client_frame(*frame);
    }
    if (state_ == State::open && reader_.violation() != wire::FrameReader::Violation::none) {
        blame(wire::Failure::Kind::violation,
              "the client sent " + std::string(wire::to_string(reader_.violation())));
    }
    guest_.flush();
}

void Session::on_client_frame(const wire::Frame& frame) {
    bool good = frame.channel == 0;
    if (good) {
        switch (frame.type) {
        case FrameType::data:
        case FrameType::eof:
            good = relay_client_data(frame);
            break;
        case FrameType::credit:
            good = relay_client_credit(frame);
            break;
        case FrameType::signal: {
            good = frame.payload.size() == 1;
            const auto signo = good ? std::to_integer<std::uint8_t>(frame.payload[0]) : 0;
            good = signo >= 1 && signo <= kHighestSignal;
            if (good) {
                to_agent(FrameType::signal, 0, frame.payload);
            }
            break;
        }
        case FrameType::detach:
        case FrameType::close:
            to_agent(frame.type);
            end();
            break;
        default:
            good = false;
        }
    }
    if (!good) {
        blame(wire::Failure::Kind::violation, "the client broke the session protocol");
    }
}

bool Session::relay_client_data(const wire::Frame& frame) {
    if (!is_input(frame.flag) || in_ended_) {
        return false;
    }
    if (frame.type == FrameType::eof) {
        if (!frame.payload.empty()) {
            return false;
        }
        in_ended_ = true;
        to_agent(FrameType::eof, frame.flag);
        return true;
    }
    if (!in_credit_.use(frame.payload.size())) {
        return false;
    }
    if (!frame.payload.empty()) {
        to_agent(FrameType::data, frame.flag, frame.payload);
    }
    return true;
}

bool Session::relay_client_credit(const wire::Frame& frame) {
    const auto index = output_index(frame.flag);
    const auto bytes = wire::parse_credit(frame.payload);
    if (!index || !bytes) {
        return false;
    }
    // What waits here has used up credit, but the client has not seen it yet: it counts as well, or
    // a client that grants and never reads could make the queue grow.
    wire::CreditAccount& account = out_credit_[*index];
    const Stream stream = *index == 1 ? Stream::err : Stream::out;
    const std::uint64_t outstanding = account.available() + queue_.waiting(stream);
    if (outstanding + *bytes > wire::kWindow || !account.grant(*bytes)) {
        return false;
    }
    to_agent(FrameType::credit, frame.flag, frame.payload);
    return true;
}

// ---- from the agent

void Session::on_agent_frame(const wire::Frame& frame) {
    if (state_ != State::open && state_ != State::opening) {
        return; // it did not know yet
    }
    bool good = false;
    switch (frame.type) {
    case FrameType::opened:
        if (const auto opened = wire::decode<wire::Opened>(frame.payload);
            opened && !opened_ && state_ == State::open) {
            good = opened_ = true;
            if (!deaf_) {
                queue_.control(FrameType::opened, wire::encode(*opened));
            }
        }
        break;
    case FrameType::data:
    case FrameType::eof:
        good = opened_ && relay_agent_data(frame);
        break;
    case FrameType::credit:
        good = opened_ && relay_agent_credit(frame);
        break;
    case FrameType::exit:
    case FrameType::open_failed:
        good = relay_agent_end(frame);
        break;
    default:
        break;
    }
    if (!good) {
        blame(wire::Failure::Kind::unreachable, "the agent broke the session protocol");
    }
}

bool Session::relay_agent_data(const wire::Frame& frame) {
    if (frame.type == FrameType::eof && is_input(frame.flag)) {
        if (std::exchange(in_unread_, true) || !frame.payload.empty()) {
            return false;
        }
        if (!deaf_) {
            queue_.control(FrameType::eof, {}, frame.flag);
        }
        return true;
    }
    const auto index = output_index(frame.flag);
    if (!index || out_ended_[*index]) {
        return false;
    }
    const Stream stream = *index == 1 ? Stream::err : Stream::out;
    if (frame.type == FrameType::eof) {
        out_ended_[*index] = true;
        if (!deaf_) {
            queue_.eof(stream);
        }
        return frame.payload.empty();
    }
    if (!out_credit_[*index].use(frame.payload.size())) {
        return false;
    }
    if (!deaf_ && !frame.payload.empty()) {
        queue_.data(ends_.client.get(), stream, frame.payload);
    }
    return true;
}

bool Session::relay_agent_credit(const wire::Frame& frame) {
    const auto bytes = wire::parse_credit(frame.payload);
    if (!is_input(frame.flag) || !bytes || !in_credit_.grant(*bytes)) {
        return false;
    }
    if (!deaf_) {
        queue_.credit(*bytes);
    }
    return true;
}

bool Session::relay_agent_end(const wire::Frame& frame) {
    if (frame.type == FrameType::exit) {
        const auto exit = wire::decode<wire::Exit>(frame.payload);
        if (!exit || !opened_) {
            return false;
        }
        finish(FrameType::exit, wire::encode(*exit));
        return true;
    }
    auto failure = wire::decode<wire::Failure>(frame.payload);
    if (!failure || opened_) {
        return false;
    }
    failure->message = printable(failure->message, 1024);
    finish(FrameType::open_failed, wire::encode(*failure));
    return true;
}

// ---- both

void Session::update() {
    if (state_ == State::over) {
        return;
    }
    if (!deaf_ && !queue_.empty() &&
        queue_.flush(ends_.client.get()) == ClientQueue::Flushed::broken) {
        // What it wrote before it went is still read, and then the end of file.
        deaf_ = true;
        queue_.clear();
    }
    if (state_ == State::finishing && queue_.empty()) {
        end();
        return;
    }
    std::uint32_t wanted = 0;
    if (!queue_.empty()) {
        wanted |= EPOLLOUT;
    }
    if (state_ == State::open && !guest_.congested()) {
        wanted |= EPOLLIN;
    }
    if (wanted != watched_) {
        watched_ = wanted;
        io_.set_events(wanted);
    }
    if (!watching_ && wanted != 0) {
        watching_ = true;
        io_.set_enabled(true);
    }
}

void Session::blame(wire::Failure::Kind kind, std::string message) {
    if (state_ == State::open || request_sent_ > 0) {
        to_agent(FrameType::close);
    }
    finish(FrameType::error,
           wire::encode(wire::Failure{.kind = kind, .message = std::move(message)}));
}

void Session::fail(const wire::Failure& failure) {
    if (state_ == State::open || state_ == State::opening) {
        finish(FrameType::error, wire::encode(failure));
        update();
    }
}

void Session::finish(FrameType type, const wire::Bytes& payload) {
    state_ = State::finishing;
    if (!deaf_) {
        queue_.last(type, payload);
    }
}

void Session::end() {
    state_ = State::over;
    io_.reset();
    // Also tells the client when another process has inherited the socket.
    (void)::shutdown(ends_.client.get(), SHUT_RDWR);
    over_();
}

} // namespace wd::shim
