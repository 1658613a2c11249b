#include "cli/session.hpp"

#include "util/text.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

namespace wd::cli {
namespace {

using wire::FrameType;
using wire::Stream;

constexpr std::size_t kReceiveChunk = 256 * 1024;
// Granted again in pieces, not byte by byte; three quarters of the window stay open meanwhile.
constexpr std::uint64_t kRegrant = wire::kWindow / 4;
// No more stdin is read while this much waits to be sent.
constexpr std::size_t kMaxUnsent = 2 * wire::kDataChunk;
constexpr std::chrono::milliseconds kBackgroundRetry{250};
constexpr std::chrono::milliseconds kFarewell{1000};

constexpr std::array kForwarded{SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM};

} // namespace

int SessionEnd::exit_status() const {
    switch (reason) {
    case Reason::exited:
        return static_cast<int>(value & 0xff);
    case Reason::signaled:
        return static_cast<int>((128 + value) & 0xff);
    case Reason::timeout:
        return 124;
    case Reason::error:
        switch (failure.kind) {
        case wire::Failure::Kind::not_executable:
            return 126;
        case wire::Failure::Kind::not_found:
            return 127;
        case wire::Failure::Kind::other:
        case wire::Failure::Kind::unreachable:
        case wire::Failure::Kind::violation:
        case wire::Failure::Kind::limit:
            return 125;
        }
        return 125;
    case Reason::detached:
        return 128 + SIGHUP;
    case Reason::interrupted:
        return 128 + SIGINT;
    case Reason::broken_pipe:
        return 128 + SIGPIPE;
    }
    return 125;
}

Session::Session(Fd session, Source in, Sink out, Sink err, int signals)
    : session_(std::move(session)),
      in_(std::move(in)),
      out_{std::move(out), Stream::out},
      err_{std::move(err), Stream::err},
      signals_(signals) {}

SessionEnd Session::run() {
    for (Output* output : {&out_, &err_}) {
        (void)output->granted.grant(wire::kWindow);
        wire::append_credit(tx_, 0, output->stream, wire::kWindow);
    }
    transmit();
    while (!end_ || !drained()) {
        wait();
    }
    if (farewell_) {
        finish_transmit(kFarewell);
    }
    return *end_;
}

void Session::wait() {
    enum { kSession, kSignals, kIn, kOut, kErr, kCount };
    std::array<pollfd, kCount> fds{};
    for (pollfd& one : fds) {
        one.fd = -1;
    }
    if (!peer_gone_ && !end_) {
        fds[kSession] = {
            session_.get(),
            static_cast<short>(POLLIN | (tx_.size() > tx_start_ && !tx_dead_ ? POLLOUT : 0)), 0};
    }
    fds[kSignals] = {signals_, POLLIN, 0};
    int timeout = -1;
    if (in_retry_) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(*in_retry_ - Clock::now());
        timeout = static_cast<int>(std::max<std::int64_t>(0, left.count()));
        if (timeout == 0) {
            in_retry_.reset();
            timeout = -1;
        }
    }
    if (!end_ && !in_done_ && !in_retry_ && in_credit_.available() > 0 &&
        tx_.size() - tx_start_ < kMaxUnsent) {
        if (in_.fd() < 0) {
            read_stdin();
            return;
        }
        fds[kIn] = {in_.fd(), POLLIN, 0};
    }
    if (out_.sink.pending() > 0) {
        fds[kOut] = {out_.sink.fd(), POLLOUT, 0};
    }
    if (err_.sink.pending() > 0) {
        fds[kErr] = {err_.sink.fd(), POLLOUT, 0};
    }
    if (::poll(fds.data(), fds.size(), timeout) < 0) {
        if (errno != EINTR) {
            fail(std::string("poll: ") + std::strerror(errno));
        }
        return;
    }
    if (fds[kSignals].revents != 0) {
        read_signals();
    }
    for (auto [output, slot] : {std::pair{&out_, kOut}, std::pair{&err_, kErr}}) {
        if (fds[slot].revents != 0) {
            if (output->sink.flush() == Sink::Write::broken) {
                sink_broke(*output);
            }
            regrant(*output);
        }
    }
    if (fds[kIn].revents != 0 && !end_) {
        read_stdin();
    }
    if (fds[kSession].revents != 0 && !end_) {
        receive();
    }
    transmit();
}

void Session::receive() {
    thread_local std::vector<std::byte> buffer(kReceiveChunk);
    const ssize_t n = ::recv(session_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0) {
        if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
            peer_gone_ = true;
            fail(std::string("the session broke: ") + std::strerror(errno));
        }
        return;
    }
    if (n == 0) {
        peer_gone_ = true;
        fail("the session ended without the command's status: the sandbox was stopped or removed, "
             "or it failed; wd inspect shows which");
        return;
    }
    reader_.feed(std::span(buffer).first(static_cast<std::size_t>(n)));
    while (!end_) {
        const auto frame = reader_.next();
        if (!frame) {
            break;
        }
        handle(*frame);
    }
    if (!end_ && reader_.violation() != wire::FrameReader::Violation::none) {
        fail("the sandbox sent " + std::string(wire::to_string(reader_.violation())));
    }
}

void Session::handle(const wire::Frame& frame) {
    switch (frame.type) {
    case FrameType::opened:
        opened_ = true;
        for (const std::uint8_t signo : held_signals_) {
            signal(signo);
        }
        held_signals_.clear();
        return;
    case FrameType::data:
        if (frame.flag == static_cast<std::uint8_t>(Stream::out)) {
            take_output(out_, frame);
        } else if (frame.flag == static_cast<std::uint8_t>(Stream::err)) {
            take_output(err_, frame);
        } else {
            fail("the sandbox sent data on a stream that is not an output");
        }
        return;
    case FrameType::eof:
        if (frame.flag == static_cast<std::uint8_t>(Stream::in)) {
            in_done_ = true; // nobody reads it any more
        }
        return;
    case FrameType::credit: {
        const auto bytes = wire::parse_credit(frame.payload);
        if (!bytes || frame.flag != static_cast<std::uint8_t>(Stream::in) ||
            !in_credit_.grant(*bytes)) {
            fail("the sandbox granted credit that it must not");
        }
        return;
    }
    case FrameType::exit: {
        const auto exit = wire::decode<wire::Exit>(frame.payload);
        if (!exit) {
            fail("the sandbox sent a malformed exit status");
            return;
        }
        switch (exit->kind) {
        case wire::Exit::Kind::exited:
            end(SessionEnd::Reason::exited, exit->value);
            break;
        case wire::Exit::Kind::signaled:
            end(SessionEnd::Reason::signaled, exit->value);
            break;
        case wire::Exit::Kind::timeout:
            end(SessionEnd::Reason::timeout, exit->value);
            break;
        }
        end_->cpu_us = exit->cpu_us;
        end_->peak_bytes = exit->peak_bytes;
        return;
    }
    case FrameType::open_failed:
    case FrameType::error: {
        const auto failure = wire::decode<wire::Failure>(frame.payload);
        if (!failure) {
            fail("the sandbox sent a malformed error");
            return;
        }
        end(SessionEnd::Reason::error);
        end_->failure = *failure;
        return;
    }
    default:
        fail("the sandbox sent a frame that a client does not expect");
        return;
    }
}

void Session::take_output(Output& output, const wire::Frame& frame) {
    if (!output.granted.use(frame.payload.size())) {
        fail("the sandbox sent more than it was granted");
        return;
    }
    if (output.sink.put(frame.payload) == Sink::Write::broken) {
        sink_broke(output);
    }
    regrant(output);
}

void Session::regrant(Output& output) {
    const std::uint64_t due = output.sink.written() - output.settled;
    if (due < kRegrant || end_) {
        return;
    }
    // Never above the window: what was written had been granted and used before.
    (void)output.granted.grant(static_cast<std::uint32_t>(due));
    wire::append_credit(tx_, 0, output.stream, static_cast<std::uint32_t>(due));
    output.settled += due;
}

// Like a local command that writes into a closed pipe: it ends. But if it has already ended by
// itself, its own status is what counts, so what has arrived is looked through first.
void Session::sink_broke(const Output& output) {
    if (end_) {
        return;
    }
    if (output.sink.hung_up()) {
        detach();
        return;
    }
    if (output.sink.error() == EPIPE || output.sink.error() == ECONNRESET) {
        end(SessionEnd::Reason::broken_pipe);
    } else {
        fail(std::string("write the command's ") +
             (output.stream == Stream::out ? "stdout: " : "stderr: ") +
             std::strerror(output.sink.error()));
    }
    const auto look = [&] {
        while (const auto frame = reader_.next()) {
            if (frame->type == FrameType::exit) {
                end_.reset();
                handle(*frame);
                return true;
            }
        }
        return false;
    };
    bool found = look();
    std::array<std::byte, 4096> more;
    while (!found) {
        const ssize_t n = ::recv(session_.get(), more.data(), more.size(), MSG_DONTWAIT);
        if (n <= 0) {
            break;
        }
        reader_.feed(std::span(more).first(static_cast<std::size_t>(n)));
        found = look();
    }
    if (!found) {
        send(FrameType::close);
    }
}

void Session::read_stdin() {
    std::array<std::byte, wire::kDataChunk> buffer;
    const std::size_t room = std::min<std::size_t>(in_credit_.available(), buffer.size());
    std::size_t got = 0;
    switch (in_.read(std::span(buffer).first(room), got)) {
    case Source::Read::data:
        (void)in_credit_.use(got);
        send(FrameType::data, static_cast<std::uint8_t>(Stream::in), std::span(buffer).first(got));
        return;
    case Source::Read::again:
        return;
    case Source::Read::background:
        in_retry_ = Clock::now() + kBackgroundRetry;
        return;
    case Source::Read::hung_up:
        detach();
        return;
    case Source::Read::end:
        in_done_ = true;
        send(FrameType::eof, static_cast<std::uint8_t>(Stream::in));
        return;
    }
}

void Session::read_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
        const int signo = static_cast<int>(info.ssi_signo);
        if (end_) {
            // The command has ended, only its output is still being written. Asked to stop: drop
            // the output, keep the status.
            drop_output();
            return;
        }
        if (signo == SIGHUP) {
            detach();
            return;
        }
        if (signo == SIGINT) {
            const auto now = Clock::now();
            const bool insists =
                interrupts_ > 0 &&
                (interrupts_ >= 2 || now - last_interrupt_ < std::chrono::seconds(1));
            ++interrupts_;
            last_interrupt_ = now;
            if (insists) {
                send(FrameType::close);
                end(SessionEnd::Reason::interrupted);
                drop_output();
                return;
            }
        }
        signal(signo);
    }
}

void Session::detach() {
    send(FrameType::detach);
    end(SessionEnd::Reason::detached);
    drop_output();
}

void Session::drop_output() {
    out_.sink = Sink::memory(0);
    err_.sink = Sink::memory(0);
}

void Session::signal(int signo) {
    const auto number = static_cast<std::uint8_t>(signo);
    if (!opened_) {
        held_signals_.push_back(number);
        return;
    }
    const std::byte payload[1] = {std::byte{number}};
    send(FrameType::signal, 0, payload);
}

void Session::send(FrameType type, std::uint8_t flag, std::span<const std::byte> payload) {
    farewell_ = farewell_ || type == FrameType::close || type == FrameType::detach;
    if (!tx_dead_) {
        wire::append_frame(tx_, {.channel = 0, .type = type, .flag = flag, .payload = payload});
    }
}

void Session::transmit() {
    while (!tx_dead_ && tx_start_ < tx_.size()) {
        const ssize_t n = ::send(session_.get(), tx_.data() + tx_start_, tx_.size() - tx_start_,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            tx_start_ += static_cast<std::size_t>(n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            tx_dead_ = true; // the status may still be on its way to us
        }
    }
    tx_.clear();
    tx_start_ = 0;
}

void Session::finish_transmit(std::chrono::milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    while (!tx_dead_ && !peer_gone_ && tx_start_ < tx_.size()) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
        pollfd one{session_.get(), POLLOUT, 0};
        if (left.count() <= 0 || ::poll(&one, 1, static_cast<int>(left.count())) == 0) {
            return;
        }
        transmit();
    }
}

void Session::end(SessionEnd::Reason reason, std::uint64_t value) {
    end_ = SessionEnd{};
    end_->reason = reason;
    end_->value = value;
}

void Session::fail(std::string message) {
    end(SessionEnd::Reason::error);
    end_->failure.message = std::move(message);
}

Result<Fd> take_signals() {
    sigset_t set;
    sigemptyset(&set);
    std::vector<int> wanted(kForwarded.begin(), kForwarded.end());
    wanted.push_back(SIGHUP);
    for (const int signo : wanted) {
        struct sigaction action {};
        if (::sigaction(signo, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(&set, signo);
        }
    }
    if (::sigprocmask(SIG_BLOCK, &set, nullptr) < 0 || ::signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
        return fail_errno(errno, "block signals");
    }
    const int fd = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0) {
        return fail_errno(errno, "watch signals");
    }
    return Fd(fd);
}

} // namespace wd::cli
