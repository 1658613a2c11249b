#include "agent/exec.hpp"

#include "agent/clock.hpp"
#include "agent/console.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace wd::agent {
namespace {

using wire::FrameType;
using wire::Stream;

constexpr std::uint64_t kGrace = 2 * kSecond; // from asking processes to end to making them
// A grant is worth a frame once a quarter of the window is owed.
constexpr std::uint32_t kGrantStep = wire::kWindow / 4;
constexpr std::size_t kLongestStatus = 4096;

std::uint64_t bytes_in(int pipe) {
    int bytes = 0;
    return ::ioctl(pipe, FIONREAD, &bytes) == 0 ? static_cast<std::uint64_t>(bytes) : 0;
}

} // namespace

Exec::Exec(const Parts& parts, std::uint32_t channel, Cgroup cgroup)
    : parts_(parts), channel_(channel), cgroup_(std::move(cgroup)) {}

Exec::~Exec() {
    cgroup_events_.reset();
    parts_.cgroups.give_up(std::move(cgroup_));
}

Outcome<std::unique_ptr<Exec>> Exec::create(const Parts& parts, std::uint32_t channel,
                                            const wire::ExecRequest& request,
                                            std::span<const std::string> setup_env) {
    auto cgroup = parts.cgroups.make();
    if (!cgroup) {
        return tl::unexpected(std::move(cgroup.error()));
    }
    std::unique_ptr<Exec> exec(new Exec(parts, channel, std::move(*cgroup)));
    auto spawned = spawn(request, setup_env, exec->cgroup_);
    if (!spawned) {
        return tl::unexpected(std::move(spawned.error()));
    }
    exec->pid_ = spawned->pid;
    if (request.timeout_ms != 0) {
        // Capped where the sum would overflow: 100 years are as good as for ever.
        exec->deadline_ =
            boot_ns() +
            std::min(request.timeout_ms, std::uint64_t{3'153'600'000'000}) * kMillisecond;
    }
    if (auto watched = exec->watch(std::move(*spawned)); !watched) {
        exec->cgroup_.kill_all();
        return tl::unexpected(std::move(watched.error()));
    }
    return exec;
}

Outcome<void> Exec::watch(Spawned spawned) {
    const auto add = [this](Watched& to, Fd from, std::uint32_t events, Slot& slot) {
        auto watched = Watched::create(parts_.poller, std::move(from), events, slot);
        if (!watched) {
            return Outcome<void>(tl::unexpected(std::move(watched.error())));
        }
        to = std::move(*watched);
        return Outcome<void>();
    };
    auto done = add(status_, std::move(spawned.status), EPOLLIN, status_slot_);
    if (done) {
        done = add(in_, std::move(spawned.in), EPOLLOUT, in_slot_);
    }
    if (done) {
        done = add(output(Stream::out).fd, std::move(spawned.out), EPOLLIN, out_slot_);
    }
    if (done) {
        done = add(output(Stream::err).fd, std::move(spawned.err), EPOLLIN, err_slot_);
    }
    return done;
}

void Exec::grant_in(std::uint32_t bytes) {
    if (channel_ != 0 && in_credit_.grant(bytes)) {
        wire::append_credit(parts_.port.out(), channel_, Stream::in, bytes);
    }
}

void Exec::send(FrameType type, std::uint8_t flag, std::span<const std::byte> payload) {
    if (channel_ == 0) {
        return; // an orphan
    }
    wire::append_frame(parts_.port.out(),
                       {.channel = channel_, .type = type, .flag = flag, .payload = payload});
}

// ---- from the client

void Exec::on_frame(const wire::Frame& frame) {
    if (silent_ || over()) {
        return;
    }
    switch (frame.type) {
    case FrameType::data:
        if (wire::parse_stream(frame.flag) != Stream::in) {
            violation("data for a stream that is not stdin");
        } else {
            on_data(frame.payload);
        }
        break;
    case FrameType::eof:
        if (wire::parse_stream(frame.flag) != Stream::in) {
            violation("the end of a stream that is not stdin");
            break;
        }
        in_eof_ = true;
        if (in_queue_.empty()) {
            in_.reset();
        }
        break;
    case FrameType::credit:
        on_credit(frame);
        break;
    case FrameType::signal:
        on_signal(frame.payload);
        break;
    case FrameType::detach:
        detach();
        break;
    case FrameType::close:
        close();
        break;
    default:
        violation("a frame that has no place on a channel");
        break;
    }
}

void Exec::on_data(std::span<const std::byte> data) {
    if (in_eof_ || !in_credit_.use(data.size())) {
        violation("more stdin than was granted");
        return;
    }
    if (!in_) {
        return; // nobody reads it, and the client was told
    }
    if (in_queue_.empty()) {
        const ssize_t n = ::write(in_.get(), data.data(), data.size());
        if (n >= 0) {
            count_in(static_cast<std::size_t>(n));
            data = data.subspan(static_cast<std::size_t>(n));
        } else if (errno == EPIPE) {
            on_in_unread();
            return;
        }
    }
    in_queue_.insert(in_queue_.end(), data.begin(), data.end());
}

void Exec::on_in(std::uint32_t events) {
    if ((events & EPOLLERR) != 0) { // the last reader is gone
        on_in_unread();
    } else {
        write_in();
    }
}

void Exec::write_in() {
    while (in_ && in_sent_ < in_queue_.size()) {
        const ssize_t n =
            ::write(in_.get(), in_queue_.data() + in_sent_, in_queue_.size() - in_sent_);
        if (n < 0) {
            if (errno == EPIPE) {
                on_in_unread();
            }
            return;
        }
        in_sent_ += static_cast<std::size_t>(n);
        count_in(static_cast<std::size_t>(n));
    }
    in_queue_ = {}; // gives the memory back
    in_sent_ = 0;
    if (in_eof_) {
        in_.reset();
    }
}

void Exec::count_in(std::size_t bytes) {
    in_owed_ += static_cast<std::uint32_t>(bytes);
    if (in_owed_ >= kGrantStep && !in_eof_) {
        grant_in(std::exchange(in_owed_, 0));
    }
}

void Exec::stop_in() {
    in_.reset();
    in_queue_ = {};
    in_sent_ = 0;
}

void Exec::on_in_unread() {
    stop_in();
    if (!in_eof_ && phase_ == Phase::running) { // opened() says it where it is too early
        send(FrameType::eof, static_cast<std::uint8_t>(Stream::in), {});
    }
}

void Exec::on_credit(const wire::Frame& frame) {
    const auto stream = wire::parse_stream(frame.flag);
    const auto bytes = wire::parse_credit(frame.payload);
    if (!stream || *stream == Stream::in || !bytes || !output(*stream).credit.grant(*bytes)) {
        violation("a grant that is malformed or beyond the window");
    }
}

void Exec::on_signal(std::span<const std::byte> payload) {
    const int signal = payload.size() == 1 ? std::to_integer<int>(payload[0]) : 0;
    if (signal < 1 || signal > SIGRTMAX) {
        violation("a signal that does not exist");
    } else if (phase_ == Phase::starting) {
        early_signals_ |= std::uint64_t{1} << (signal - 1);
    } else if (phase_ == Phase::running && pid_ > 0) {
        ::kill(-pid_, signal);
    }
}

void Exec::violation(const char* what) {
    console("exec %u: the host sent %s; closing it", channel_, what);
    close();
    silent_ = true;
}

void Exec::detach() {
    stop_in();
    drop_output();
    finish_if_drained();
}

void Exec::orphan() {
    detach();
    channel_ = 0;
}

void Exec::close() {
    detach();
    if (ending_ == Ending::no && pid_ > 0) {
        ::kill(-pid_, SIGHUP);
        ::kill(-pid_, SIGCONT); // a stopped process would not see it
        begin_ending(Ending::closed, kGrace);
    }
}

// ---- from the child

void Exec::on_status(std::uint32_t) {
    while (status_) {
        std::byte chunk[1024];
        const ssize_t n = ::read(status_.get(), chunk, sizeof chunk);
        if (n > 0 && status_text_.size() < kLongestStatus) {
            status_text_.insert(status_text_.end(), chunk, chunk + n);
        } else if (n == 0) {
            status_.reset();
        } else if (n < 0 && errno != EINTR) {
            return;
        }
    }
    if (phase_ != Phase::starting) {
        return;
    }
    if (status_text_.empty()) {
        opened();
        return;
    }
    const auto told = wire::decode<wire::Failure>(status_text_);
    open_failed(told ? *told
                     : wire::Failure{FailureKind::other, EPROTO, "could not start the command"});
}

void Exec::opened() {
    phase_ = Phase::running;
    send(FrameType::opened, 0, wire::encode(wire::Opened{static_cast<std::uint64_t>(pid_)}));
    if (in_) {
        grant_in(wire::kWindow);
    } else if (!in_eof_) {
        send(FrameType::eof, static_cast<std::uint8_t>(Stream::in), {});
    }
    for (int signal = 1; signal <= 64 && early_signals_ != 0; ++signal) {
        if ((early_signals_ >> (signal - 1) & 1) != 0 && pid_ > 0) {
            ::kill(-pid_, signal);
        }
    }
    early_signals_ = 0;
}

void Exec::open_failed(const wire::Failure& failure) {
    send(FrameType::open_failed, 0, wire::encode(failure));
    phase_ = Phase::over;
}

void Exec::on_reaped(int status) {
    on_status(0); // whether the program ever ran; the pipe's other end is closed now
    pid_ = -1;
    wait_status_ = status;
    if (phase_ != Phase::running) {
        phase_ = Phase::over;
        return;
    }
    phase_ = Phase::ended;
    stop_in();
    if (ending_ == Ending::timeout && cgroup_.populated()) {
        // None may be left behind, so the end waits for all of them.
        auto events = cgroup_.open_events();
        if (events) {
            auto watched =
                Watched::create(parts_.poller, std::move(*events), EPOLLPRI, cgroup_slot_);
            if (watched) {
                cgroup_events_ = std::move(*watched);
            }
        }
        on_cgroup(0); // they may have gone before the watch was there
        return;
    }
    begin_draining();
}

void Exec::on_cgroup(std::uint32_t) {
    if (cgroup_events_) {
        // kernfs reports changes since the last read of this very descriptor.
        char text[128];
        const ssize_t ignored = ::pread(cgroup_events_.get(), text, sizeof text, 0);
        static_cast<void>(ignored);
    }
    if (!cgroup_.populated()) {
        begin_draining();
    }
}

void Exec::begin_ending(Ending why, std::uint64_t grace_ns) {
    ending_ = why;
    deadline_ = boot_ns() + grace_ns;
}

void Exec::on_deadline() {
    deadline_ = kNever;
    if (ending_ == Ending::no) {
        cgroup_.signal_all(SIGTERM);
        cgroup_.signal_all(SIGCONT);
        begin_ending(Ending::timeout, kGrace);
    } else if (!killed_) {
        killed_ = true;
        cgroup_.kill_all();
        deadline_ = boot_ns() + kGrace; // what is then left cannot be ended at all
    } else if (phase_ == Phase::ended) {
        begin_draining();
    }
}

// ---- output

void Exec::on_out(std::uint32_t events) {
    on_output(output(Stream::out), events);
}

void Exec::on_err(std::uint32_t events) {
    on_output(output(Stream::err), events);
}

void Exec::on_output(Output& output, std::uint32_t) {
    output.readable = true;
}

bool Exec::produce() {
    if (phase_ != Phase::running && phase_ != Phase::ended) {
        return false;
    }
    const Stream first = err_next_ ? Stream::err : Stream::out;
    const Stream second = err_next_ ? Stream::out : Stream::err;
    bool made = false;
    if (produce_from(first, output(first))) {
        err_next_ = !err_next_;
        made = true;
    } else if (produce_from(second, output(second))) {
        made = true;
    }
    if (phase_ == Phase::ended && !cgroup_events_) {
        finish_if_drained();
    }
    return made;
}

bool Exec::produce_from(Stream stream, Output& output) {
    if (!output.readable || output.at_end) {
        return false;
    }
    const auto most =
        std::min<std::uint64_t>({wire::kDataChunk, output.credit.available(), output.left});
    if (most == 0) {
        return false;
    }
    Port& port = parts_.port;
    const ssize_t n = ::read(output.fd.get(), port.data_room(), most);
    if (n <= 0) {
        output.readable = n < 0 && errno == EINTR;
        if (n == 0) {
            end_output(stream, output);
        }
        return false;
    }
    const auto length = static_cast<std::uint32_t>(n);
    port.put_data(channel_, stream, length);
    static_cast<void>(output.credit.use(length));
    if (output.left != UINT64_MAX) {
        output.left -= length;
    }
    return true;
}

void Exec::end_output(Stream stream, Output& output) {
    output.fd.reset();
    output.at_end = true;
    send(FrameType::eof, static_cast<std::uint8_t>(stream), {});
}

void Exec::drop_output() {
    for (Output& output : outputs_) {
        output.at_end = true;
        if (output.fd) {
            parts_.drains.add(output.fd.release());
        }
    }
}

void Exec::begin_draining() {
    cgroup_events_.reset();
    deadline_ = kNever;
    for (Output& output : outputs_) {
        if (!output.at_end) {
            output.left = bytes_in(output.fd.get());
            output.readable = true;
        }
    }
    finish_if_drained();
}

void Exec::finish_if_drained() {
    if (phase_ != Phase::ended || cgroup_events_) {
        return;
    }
    for (const Stream stream : {Stream::out, Stream::err}) {
        Output& out = output(stream);
        if (!out.at_end && out.left == 0) {
            parts_.drains.add(out.fd.release());
            end_output(stream, out);
        }
    }
    if (!outputs_[0].at_end || !outputs_[1].at_end) {
        return;
    }
    wire::Exit exit{.cpu_us = cgroup_.cpu_us(), .peak_bytes = cgroup_.peak_bytes()};
    if (ending_ == Ending::timeout) {
        exit.kind = wire::Exit::Kind::timeout;
    }
    if (WIFSIGNALED(wait_status_)) {
        exit.kind = exit.kind == wire::Exit::Kind::timeout ? exit.kind : wire::Exit::Kind::signaled;
        exit.value = static_cast<std::uint64_t>(WTERMSIG(wait_status_));
    } else {
        exit.value = static_cast<std::uint64_t>(WEXITSTATUS(wait_status_));
    }
    send(FrameType::exit, 0, wire::encode(exit));
    phase_ = Phase::over;
}

} // namespace wd::agent
