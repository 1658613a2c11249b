#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
// The client side of an exec against a scripted peer on the other end of a socketpair.
#include "cli/session.hpp"

#include <csignal>
#include <functional>
#include <thread>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace wd;
using namespace wd::cli;
using wire::Frame;
using wire::FrameType;
using wire::Stream;

namespace {

struct Pipe {
    Fd read;
    Fd write;
};
Pipe make_pipe() {
    int fds[2];
    REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
    return {Fd(fds[0]), Fd(fds[1])};
}

std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

// The shim's side, blocking.
class Peer {
public:
    explicit Peer(Fd fd) : fd_(std::move(fd)) {}

    void send(FrameType type, std::uint8_t flag, std::span<const std::byte> payload) {
        std::vector<std::byte> out;
        wire::append_frame(out, {.type = type, .flag = flag, .payload = payload});
        raw(out);
    }
    void raw(std::span<const std::byte> data) {
        while (!data.empty()) {
            const ssize_t n = ::send(fd_.get(), data.data(), data.size(), MSG_NOSIGNAL);
            if (n <= 0) {
                return;
            }
            data = data.subspan(static_cast<std::size_t>(n));
        }
    }
    void data(Stream stream, std::string_view text) {
        granted_[static_cast<std::size_t>(stream)] -= static_cast<std::int64_t>(text.size());
        send(FrameType::data, static_cast<std::uint8_t>(stream), bytes(text));
    }
    void credit(std::uint32_t amount) {
        std::vector<std::byte> out;
        wire::append_credit(out, 0, Stream::in, amount);
        raw(out);
    }
    void opened() { send(FrameType::opened, 0, wire::encode(wire::Opened{1})); }
    void exit(wire::Exit exit) { send(FrameType::exit, 0, wire::encode(exit)); }
    void exit(std::uint64_t status) { exit({.kind = wire::Exit::Kind::exited, .value = status}); }

    struct Got {
        FrameType type{};
        std::uint8_t flag = 0;
        std::string payload;
    };
    // nullopt: the client has left.
    std::optional<Got> next() {
        for (;;) {
            if (const auto frame = reader_.next()) {
                return Got{
                    frame->type,
                    frame->flag,
                    {reinterpret_cast<const char*>(frame->payload.data()), frame->payload.size()}};
            }
            std::byte buffer[4096];
            const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
            if (n <= 0) {
                return std::nullopt;
            }
            reader_.feed(std::span(buffer).first(static_cast<std::size_t>(n)));
        }
    }
    // The next frame that is not credit.
    std::optional<Got> next_but_credit() {
        for (;;) {
            auto got = next();
            if (!got || got->type != FrameType::credit) {
                return got;
            }
            granted_[got->flag & 3] += *wire::parse_credit(bytes(got->payload));
        }
    }
    // Sends everything against credit, waiting for it.
    void stream_out(Stream stream, std::string_view text) {
        const auto index = static_cast<std::size_t>(stream);
        while (!text.empty()) {
            while (granted_[index] <= 0) {
                const auto got = next();
                if (!got) {
                    return;
                }
                if (got->type == FrameType::credit) {
                    granted_[got->flag & 3] += *wire::parse_credit(bytes(got->payload));
                    CHECK(granted_[got->flag & 3] <= wire::kWindow);
                }
            }
            const auto n = static_cast<std::size_t>(
                std::min({static_cast<std::int64_t>(text.size()), granted_[index],
                          static_cast<std::int64_t>(wire::kDataChunk)}));
            data(stream, text.substr(0, n));
            text.remove_prefix(n);
        }
    }
    void close() { fd_.reset(); }
    int fd() const { return fd_.get(); }

private:
    Fd fd_;
    wire::FrameReader reader_;
    std::int64_t granted_[4] = {};
};

struct Outcome {
    SessionEnd end;
    std::string out;
    std::string err;
};

// Runs a session that collects its output, against the script in a thread.
Outcome run(const std::function<void(Peer&)>& script, int in = -1, int signals = -1) {
    ::signal(SIGPIPE, SIG_IGN);
    auto pair = socket_pair(SOCK_STREAM);
    REQUIRE(pair.has_value());
    std::thread peer([&script, fd = std::move(pair->second)]() mutable {
        Peer self(std::move(fd));
        script(self);
    });
    Session session(std::move(pair->first), Source(in), Sink::memory(64 << 20),
                    Sink::memory(64 << 20), signals);
    Outcome outcome{
        .end = session.run(), .out = session.out().collected(), .err = session.err().collected()};
    {
        // The session owns its end; closing it here lets a script that still reads go on.
        Session closed = std::move(session);
    }
    peer.join();
    return outcome;
}

std::string read_exactly(int fd, std::size_t size) {
    std::string out(size, '\0');
    std::size_t at = 0;
    while (at < size) {
        const ssize_t n = ::read(fd, out.data() + at, size - at);
        REQUIRE(n > 0);
        at += static_cast<std::size_t>(n);
    }
    return out;
}

std::string pattern(std::size_t size) {
    std::string text(size, '\0');
    std::uint32_t state = 1;
    for (char& c : text) {
        state = state * 1664525 + 1013904223;
        c = static_cast<char>(state >> 24);
    }
    return text;
}

} // namespace

TEST_CASE("output, status and figures arrive") {
    const auto outcome = run([](Peer& peer) {
        peer.opened();
        peer.data(Stream::out, "out");
        peer.data(Stream::err, std::string_view("e\0r", 3));
        peer.exit(
            {.kind = wire::Exit::Kind::exited, .value = 7, .cpu_us = 1500000, .peak_bytes = 4096});
    });
    CHECK(outcome.end.reason == SessionEnd::Reason::exited);
    CHECK(outcome.end.exit_status() == 7);
    CHECK(outcome.end.cpu_us == 1500000);
    CHECK(outcome.end.peak_bytes == 4096);
    CHECK(outcome.out == "out");
    CHECK(outcome.err == std::string_view("e\0r", 3));
}

TEST_CASE("exit statuses of the other ends") {
    const auto status = [](const std::function<void(Peer&)>& script) {
        return run(script).end.exit_status();
    };
    CHECK(status([](Peer& p) { p.exit({.kind = wire::Exit::Kind::signaled, .value = 9}); }) == 137);
    CHECK(status([](Peer& p) { p.exit({.kind = wire::Exit::Kind::timeout, .value = 9}); }) == 124);
    using Kind = wire::Failure::Kind;
    for (const auto& [kind, expected] :
         {std::pair{Kind::other, 125}, std::pair{Kind::not_executable, 126},
          std::pair{Kind::not_found, 127}, std::pair{Kind::unreachable, 125},
          std::pair{Kind::violation, 125}, std::pair{Kind::limit, 125}}) {
        const wire::Failure failure{.kind = kind, .message = "why"};
        for (const FrameType type : {FrameType::open_failed, FrameType::error}) {
            const auto outcome = run([&](Peer& p) { p.send(type, 0, wire::encode(failure)); });
            CHECK(outcome.end.exit_status() == expected);
            CHECK(outcome.end.failure.message == "why");
        }
    }
}

TEST_CASE("a session that just ends is workdir's failure, and keeps the output before") {
    const auto outcome = run([](Peer& p) { p.data(Stream::out, "before"); });
    CHECK(outcome.end.exit_status() == 125);
    CHECK(outcome.out == "before");
    CHECK_FALSE(outcome.end.failure.message.empty());
}

TEST_CASE("garbage is a violation: 125, never a crash") {
    const auto broken = [](const std::function<void(Peer&)>& script) {
        const auto outcome = run(script);
        return outcome.end.exit_status() == 125 && !outcome.end.failure.message.empty();
    };
    CHECK(broken([](Peer& p) { p.raw(bytes(std::string(100, '\xff'))); }));
    CHECK(broken([](Peer& p) { p.data(Stream::in, "x"); }));
    CHECK(broken([](Peer& p) { p.credit(wire::kWindow + 1); }));
    CHECK(broken([](Peer& p) { p.send(FrameType::exit, 0, bytes("xx")); }));
    CHECK(broken([](Peer& p) { p.send(FrameType::error, 0, bytes("xx")); }));
    CHECK(broken([](Peer& p) { p.send(FrameType::hello, 0, {}); }));
    CHECK(broken([](Peer& p) { p.send(FrameType::credit, 0, bytes("x")); }));
    CHECK(broken([](Peer& p) { // more than the window, all at once
        const std::string chunk(wire::kDataChunk, 'x');
        for (std::size_t sent = 0; sent <= wire::kWindow; sent += chunk.size()) {
            p.data(Stream::out, chunk);
        }
    }));
}

TEST_CASE("credit: a window at the start, more as bytes are written, never above the window") {
    const std::string text = pattern(3 * 1024 * 1024 + 17);
    const auto outcome = run([&](Peer& p) {
        p.opened();
        p.stream_out(Stream::out, text);
        p.stream_out(Stream::err, text);
        p.exit(0);
    });
    CHECK(outcome.end.exit_status() == 0);
    CHECK(outcome.out == text);
    CHECK(outcome.err == text);
}

TEST_CASE("stdin: in order, within the agent's credit, and then its end") {
    Pipe in = make_pipe();
    const std::string text = pattern(1024 * 1024);
    std::thread writer([&] {
        (void)write_all(in.write.get(), text);
        in.write.reset();
    });
    std::string got;
    const auto outcome = run(
        [&](Peer& p) {
            p.opened();
            p.credit(1000);
            std::size_t outstanding = 1000;
            while (const auto frame = p.next_but_credit()) {
                if (frame->type == FrameType::eof) {
                    CHECK(frame->flag == static_cast<std::uint8_t>(Stream::in));
                    break;
                }
                REQUIRE(frame->type == FrameType::data);
                CHECK(frame->payload.size() <= outstanding);
                outstanding -= frame->payload.size();
                got += frame->payload;
                if (outstanding == 0) {
                    p.credit(100000);
                    outstanding = 100000;
                }
            }
            p.exit(0);
        },
        in.read.get());
    writer.join();
    CHECK(outcome.end.exit_status() == 0);
    CHECK(got == text);
}

TEST_CASE("stdin that never comes is not waited for") {
    Pipe in = make_pipe(); // stays open and silent
    const auto outcome = run(
        [](Peer& p) {
            p.opened();
            p.credit(wire::kWindow);
            p.data(Stream::out, "hi");
            p.exit(0);
        },
        in.read.get());
    CHECK(outcome.end.exit_status() == 0);
    CHECK(outcome.out == "hi");
}

TEST_CASE("stdin that is closed, a directory or /dev/null is an end of file") {
    const Fd directory(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (const int in : {-1, directory.get(), null.get()}) {
        bool eof = false;
        (void)run(
            [&](Peer& p) {
                p.credit(100);
                const auto frame = p.next_but_credit();
                eof = frame && frame->type == FrameType::eof;
                p.exit(0);
            },
            in);
        CHECK(eof);
    }
}

TEST_CASE("after eof of stdin from the agent no more is sent") {
    Pipe in = make_pipe();
    (void)write_all(in.write.get(), "unwanted");
    std::size_t frames = 0;
    (void)run(
        [&](Peer& p) {
            p.send(FrameType::eof, static_cast<std::uint8_t>(Stream::in), {});
            p.credit(100);
            p.exit(0);
            while (p.next_but_credit()) {
                ++frames;
            }
        },
        in.read.get());
    CHECK(frames == 0);
}

TEST_CASE("a reader that stalls stalls its own stream only") {
    Pipe out = make_pipe();
    Pipe err = make_pipe();
    const std::string text = pattern(1024 * 1024);
    auto pair = socket_pair(SOCK_STREAM);
    REQUIRE(pair.has_value());
    Session session(std::move(pair->first), Source(-1), Sink(out.write.get()),
                    Sink(err.write.get()), -1);
    SessionEnd end;
    std::thread runner([&] { end = session.run(); });
    Peer peer(std::move(pair->second));
    // Nobody reads stdout: a window of it is taken, and stderr goes on.
    peer.data(Stream::out, std::string(wire::kDataChunk, 'o'));
    for (std::size_t sent = wire::kDataChunk; sent < wire::kWindow;) {
        const std::size_t n = std::min<std::size_t>(wire::kDataChunk, wire::kWindow - sent);
        peer.data(Stream::out, std::string(n, 'o'));
        sent += n;
    }
    std::thread err_writer([&] {
        peer.stream_out(Stream::err, text);
        peer.exit(5);
    });
    CHECK(read_exactly(err.read.get(), text.size()) == text);
    // The status is there, and still all of stdout is delivered to a reader that comes late.
    CHECK(read_exactly(out.read.get(), wire::kWindow) == std::string(wire::kWindow, 'o'));
    err_writer.join();
    runner.join();
    CHECK(end.exit_status() == 5);
    CHECK((::fcntl(out.write.get(), F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE("a reader that has gone closes the command, unless that has ended by itself") {
    for (const bool ended : {false, true}) {
        Pipe out = make_pipe();
        auto pair = socket_pair(SOCK_STREAM);
        REQUIRE(pair.has_value());
        Session session(std::move(pair->first), Source(-1), Sink(out.write.get()),
                        Sink::memory(100), -1);
        out.read.reset();
        Peer peer(std::move(pair->second));
        std::vector<std::byte> both;
        wire::append_frame(both, {.type = FrameType::data,
                                  .flag = static_cast<std::uint8_t>(Stream::out),
                                  .payload = bytes("x")});
        if (ended) {
            wire::append_frame(
                both, {.type = FrameType::exit, .payload = wire::encode(wire::Exit{.value = 3})});
        }
        peer.raw(both);
        CHECK(session.run().exit_status() == (ended ? 3 : 128 + SIGPIPE));
        if (!ended) {
            const auto frame = peer.next_but_credit();
            REQUIRE(frame.has_value());
            CHECK(frame->type == FrameType::close);
        }
    }
}

TEST_CASE("a full disk under stdout is an error with its reason") {
    const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
    auto pair = socket_pair(SOCK_STREAM);
    REQUIRE(pair.has_value());
    Session session(std::move(pair->first), Source(-1), Sink(full.get()), Sink::memory(100), -1);
    Peer peer(std::move(pair->second));
    peer.data(Stream::out, "x");
    const SessionEnd end = session.run();
    CHECK(end.exit_status() == 125);
    CHECK(end.failure.message.find("No space left") != std::string::npos);
    CHECK(peer.next_but_credit()->type == FrameType::close);
}

TEST_CASE("captured output is bounded") {
    auto pair = socket_pair(SOCK_STREAM);
    REQUIRE(pair.has_value());
    Session session(std::move(pair->first), Source(-1), Sink::memory(10), Sink::memory(10), -1);
    Peer peer(std::move(pair->second));
    peer.data(Stream::out, "0123456789abc");
    peer.exit(0);
    CHECK(session.run().exit_status() == 0);
    CHECK(session.out().collected() == "0123456789");
    CHECK(session.out().truncated());
    CHECK_FALSE(session.err().truncated());
}

namespace {

// A signalfd stands for take_signals(); raise() in a thread that blocks them.
struct Signals {
    Fd fd;
    sigset_t old{};

    Signals() {
        // What starts the tests may ignore these, which they would inherit (nohup, sh -c '… &').
        for (const int signo : {SIGHUP, SIGINT, SIGTERM}) {
            (void)std::signal(signo, SIG_DFL);
        }
        REQUIRE(::pthread_sigmask(SIG_SETMASK, nullptr, &old) == 0);
        auto taken = take_signals();
        REQUIRE(taken.has_value());
        fd = std::move(*taken);
    }
    Signals(const Signals&) = delete;
    Signals& operator=(const Signals&) = delete;
    ~Signals() { ::pthread_sigmask(SIG_SETMASK, &old, nullptr); }
};

} // namespace

TEST_CASE("signals reach the command once it is there") {
    Signals signals;
    ::kill(::getpid(), SIGTERM);
    std::vector<int> got;
    const auto outcome = run(
        [&](Peer& p) {
            p.opened();
            const auto frame = p.next_but_credit();
            if (frame && frame->type == FrameType::signal && frame->payload.size() == 1) {
                got.push_back(frame->payload[0]);
            }
            p.exit({.kind = wire::Exit::Kind::signaled, .value = SIGTERM});
        },
        -1, signals.fd.get());
    CHECK(got == std::vector<int>{SIGTERM});
    CHECK(outcome.end.exit_status() == 128 + SIGTERM);
}

TEST_CASE("a second interrupt within a second closes the command") {
    Signals signals;
    const auto outcome = run(
        [&](Peer& p) {
            p.opened();
            ::kill(::getpid(), SIGINT);
            auto frame = p.next_but_credit();
            CHECK((frame && frame->type == FrameType::signal));
            ::kill(::getpid(), SIGINT);
            frame = p.next_but_credit();
            CHECK((frame && frame->type == FrameType::close));
        },
        -1, signals.fd.get());
    CHECK(outcome.end.exit_status() == 130);
}

TEST_CASE("a hangup detaches") {
    Signals signals;
    const auto outcome = run(
        [&](Peer& p) {
            p.opened();
            ::kill(::getpid(), SIGHUP);
            const auto frame = p.next_but_credit();
            CHECK((frame && frame->type == FrameType::detach));
        },
        -1, signals.fd.get());
    CHECK(outcome.end.exit_status() == 129);
}
