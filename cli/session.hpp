#pragma once
// Session: pumps one exec between a session fd (src/wire frames) and local streams until the
// command has ended. Needs no bus: a restart of workdird in the middle is not noticed.
//
// stdin is forwarded while the command wants it and never waited for. A local reader that stalls
// stalls its own stream only. Memory: at most kWindow a stream.

#include "cli/streams.hpp"
#include "util/fd.hpp"
#include "wire/frame.hpp"
#include "wire/message.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace wd::cli {

struct SessionEnd {
    enum class Reason {
        exited,      // value: status
        signaled,    // value: signal number
        timeout,     // the agent ended it after its timeout
        error,       // of workdir: failure
        detached,    // SIGHUP or a terminal that hung up: the command goes on
        interrupted, // the user insisted: the command was closed
        broken_pipe, // our own reader has gone: the command was closed
    };
    Reason reason = Reason::error;
    std::uint64_t value = 0;
    std::uint64_t cpu_us = 0;
    std::uint64_t peak_bytes = 0;
    wire::Failure failure;

    int exit_status() const; // of wd exec
};

class Session {
public:
    // `signals`: a signalfd(2), or -1. The fds are borrowed, `session` is owned. Precondition:
    // SIGPIPE is ignored.
    Session(Fd session, Source in, Sink out, Sink err, int signals);

    SessionEnd run();

    const Sink& out() const { return out_.sink; }
    const Sink& err() const { return err_.sink; }

private:
    struct Output {
        Sink sink;
        wire::Stream stream;
        wire::CreditAccount granted{}; // what the other side may still send
        std::uint64_t settled = 0;     // of sink.written(), granted again
    };
    using Clock = std::chrono::steady_clock;

    void wait();
    void receive();
    void handle(const wire::Frame& frame);
    void take_output(Output& output, const wire::Frame& frame);
    void regrant(Output& output);
    void read_stdin();
    void read_signals();
    void signal(int signo);
    void send(wire::FrameType type, std::uint8_t flag = 0, std::span<const std::byte> payload = {});
    void transmit();
    void finish_transmit(std::chrono::milliseconds limit);
    void end(SessionEnd::Reason reason, std::uint64_t value = 0);
    void fail(std::string message);
    void sink_broke(const Output& output);
    void detach();
    void drop_output();
    bool drained() const { return out_.sink.pending() == 0 && err_.sink.pending() == 0; }

    Fd session_;
    Source in_;
    Output out_;
    Output err_;
    int signals_;

    wire::FrameReader reader_;
    std::vector<std::byte> tx_;
    std::size_t tx_start_ = 0;
    bool tx_dead_ = false; // the other side takes no more; what it sent is still read
    bool peer_gone_ = false;
    bool opened_ = false;
    std::vector<std::uint8_t> held_signals_; // until the process exists

    wire::CreditAccount in_credit_;
    bool in_done_ = false;
    std::optional<Clock::time_point> in_retry_; // in the background of a terminal until then

    int interrupts_ = 0;
    Clock::time_point last_interrupt_{};
    bool farewell_ = false; // a close or detach must still get out
    std::optional<SessionEnd> end_;
};

// Blocks the signals that a session forwards and makes a signalfd of them; those that are ignored
// (nohup, a shell's background job) stay so. Also ignores SIGPIPE.
Result<Fd> take_signals();

} // namespace wd::cli
