// The parts of the shim; the whole of it is tested by shim/shim_test.py.

#include "control/message.hpp"
#include "shim/byte_queue.hpp"
#include "shim/cgroup_events.hpp"
#include "shim/client_queue.hpp"
#include "shim/console.hpp"
#include "shim/end_reason.hpp"
#include "shim/session_table.hpp"

#include <filesystem>
#include <fstream>
#include <random>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

using namespace wd;
using namespace wd::shim;
using wire::FrameType;
using wire::Stream;

namespace {

std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text(std::span<const std::byte> data) {
    return {reinterpret_cast<const char*>(data.data()), data.size()};
}

struct Heard {
    std::uint32_t channel;
    FrameType type;
    std::uint8_t flag;
    std::string payload;
    bool operator==(const Heard&) const = default;
};

// Everything there is to read on a non-blocking socket, as frames.
class Listener {
public:
    explicit Listener(int fd) : fd_(fd) {}
    std::vector<Heard> take() {
        char buffer[65536];
        ssize_t n = 0;
        while ((n = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
            reader_.feed(bytes({buffer, static_cast<std::size_t>(n)}));
        }
        ended_ = ended_ || n == 0;
        std::vector<Heard> out;
        while (const auto frame = reader_.next()) {
            out.push_back({frame->channel, frame->type, frame->flag, text(frame->payload)});
        }
        CHECK(reader_.violation() == wire::FrameReader::Violation::none);
        return out;
    }
    bool ended() const { return ended_; }

private:
    int fd_;
    wire::FrameReader reader_;
    bool ended_ = false;
};

SocketPair sockets() {
    return std::move(*socket_pair(SOCK_STREAM | SOCK_NONBLOCK));
}

void run(const event::Loop& loop) {
    while (sd_event_run(loop.get(), 0) > 0) {
    }
}

} // namespace

TEST_CASE("byte queue: what goes in comes out, in any pieces") {
    std::mt19937 random(1);
    ByteQueue queue;
    std::string in;
    std::string out;
    for (int i = 0; i < 2000; ++i) {
        const std::string piece(random() % 3000, static_cast<char>('a' + i % 26));
        queue.append(bytes(piece));
        in += piece;
        const std::size_t n = std::min<std::size_t>(random() % 3000, queue.size());
        out += text(queue.view().first(n));
        queue.consume(n);
    }
    out += text(queue.view());
    CHECK(out == in);
    queue.consume(queue.size());
    CHECK(queue.empty());
}

TEST_CASE("client queue: order, end, and a reader that is slow") {
    auto [ours, theirs] = sockets();
    Listener client(theirs.get());
    ClientQueue queue;
    CHECK(queue.empty());
    queue.control(FrameType::opened, bytes("o"));
    queue.data(ours.get(), Stream::err, bytes("warning"));
    queue.data(ours.get(), Stream::out, bytes("result"));
    queue.credit(5);
    queue.credit(6);
    queue.eof(Stream::out);
    queue.last(FrameType::exit, bytes("e"));
    CHECK(queue.flush(ours.get()) == ClientQueue::Flushed::all);
    CHECK(queue.empty());
    CHECK(client.take() ==
          std::vector<Heard>{{0, FrameType::opened, 0, "o"},
                             {0, FrameType::data, 2, "warning"},
                             {0, FrameType::data, 1, "result"},
                             {0, FrameType::credit, 0, std::string("\x0b\0\0\0", 4)},
                             {0, FrameType::eof, 1, ""},
                             {0, FrameType::exit, 0, "e"}});

    // Large and small, more than the socket takes: nothing lost, nothing twice, in order.
    std::string sent[2];
    std::string got[2];
    std::mt19937 random(2);
    for (int i = 0; i < 3000; ++i) {
        const std::string piece(random() % 20 == 0 ? random() % 60000 : random() % 50,
                                static_cast<char>('a' + i % 26));
        const std::size_t at = random() % 2;
        sent[at] += piece;
        queue.data(ours.get(), at == 1 ? Stream::err : Stream::out, bytes(piece));
        if (random() % 10 == 0) {
            (void)queue.flush(ours.get());
        }
        if (random() % 50 == 0) {
            for (const Heard& frame : client.take()) {
                got[frame.flag == 2 ? 1 : 0] += frame.payload;
            }
        }
    }
    queue.last(FrameType::exit, {});
    for (bool all = false; !all;) {
        all = queue.flush(ours.get()) == ClientQueue::Flushed::all;
        for (const Heard& frame : client.take()) {
            if (frame.type == FrameType::data) {
                got[frame.flag == 2 ? 1 : 0] += frame.payload;
            } else {
                CHECK(frame.type == FrameType::exit);
                CHECK(all);
            }
        }
    }
    CHECK(got[0] == sent[0]);
    CHECK(got[1] == sent[1]);

    theirs.reset();
    queue.control(FrameType::opened, {});
    CHECK(queue.flush(ours.get()) == ClientQueue::Flushed::broken);
}

TEST_CASE("cgroup: where the counters are") {
    constexpr const char* kV2Mounts =
        "22 1 0:20 / /proc rw - proc proc rw\n"
        "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    auto folders = find_cgroup("0::/workdir.slice/workdir-sb-a.service\n", kV2Mounts);
    CHECK(folders.memory == "/sys/fs/cgroup/workdir.slice/workdir-sb-a.service");
    CHECK(folders.memory_v2);
    CHECK(folders.pids == folders.memory);

    constexpr const char* kHybridMounts =
        "31 22 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "32 31 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "33 31 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
        "34 31 0:30 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "35 31 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
    folders = find_cgroup("5:pids:/a\n4:memory:/box/a\n2:cpu,cpuacct:/\n1:name=systemd:/a\n0::/a\n",
                          kHybridMounts);
    CHECK(folders.memory == "/sys/fs/cgroup/memory/a");
    CHECK(!folders.memory_v2);
    CHECK(folders.pids == "/sys/fs/cgroup/pids/a");

    for (const char* nonsense : {"", ":", "::", "0", "0:\n", "\n\n", "0::", " - ", "a b c d - e"}) {
        folders = find_cgroup(nonsense, nonsense);
        CHECK(folders.pids.empty());
        (void)find_cgroup("0::/\n", nonsense);
    }
    CHECK(flat_value("low 0\noom 3\noom_kill 2\n", "oom_kill") == 2);
    CHECK(flat_value("low 0\noom 3\noom_kill 2\n", "oom") == 3);
    CHECK(!flat_value("oom_kill_disable 0\n", "oom_kill"));
    CHECK(!flat_value("oom x\n", "oom"));
}

TEST_CASE("cgroup: the counters of both kinds") {
    char folder[] = "/tmp/wd-cgroup-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    const std::filesystem::path at = folder;
    const auto put = [&](const char* name, const char* content) {
        std::ofstream(at / name) << content;
    };
    put("memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n");
    put("memory.max", "536870912\n");
    put("memory.peak", "536870000\n");
    put("pids.events", "max 4\n");
    put("pids.max", "64\n");
    auto events = read_cgroup_events({.memory = at, .memory_v2 = true, .pids = at});
    CHECK(events.oom_kills == 1);
    CHECK(events.limit_hits == 2);
    CHECK(events.memory_limit == 536870912);
    CHECK(events.memory_peak == 536870000);
    CHECK(events.pids_refused == 4);
    CHECK(events.pids_limit == 64);
    put("memory.max", "max\n");
    CHECK(read_cgroup_events({.memory = at, .memory_v2 = true}).memory_limit == 0);

    put("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
    put("memory.failcnt", "12\n");
    put("memory.limit_in_bytes", "9223372036854771712\n");
    put("memory.max_usage_in_bytes", "1000\n");
    events = read_cgroup_events({.memory = at, .memory_v2 = false});
    CHECK(events.oom_kills == 7);
    CHECK(events.limit_hits == 12);
    CHECK(events.memory_limit == 0);
    CHECK(events.memory_peak == 1000);
    CHECK(events.pids_refused == 0);
    CHECK(read_cgroup_events({}).oom_kills == 0);
    CHECK(read_cgroup_events({.memory = "/nonexistent", .memory_v2 = true}).oom_kills == 0);
    std::filesystem::remove_all(at);
}

TEST_CASE("end: what each set of facts means") {
    using model::EndReason;
    const EndFacts exited{.code = CLD_EXITED, .status = 0, .was_ready = true};
    const EndFacts killed{.code = CLD_KILLED, .status = SIGKILL, .was_ready = true};
    const auto with = [](EndFacts facts, auto change) {
        change(facts);
        return decide_end(facts);
    };
    CHECK(decide_end(killed).reason == EndReason::vmm_crash);
    auto end = with(killed, [](EndFacts& f) {
        f.after = {.oom_kills = 1, .limit_hits = 3, .memory_limit = 100, .memory_peak = 99};
    });
    CHECK(end.reason == EndReason::oom);
    CHECK(end.limit == 100);
    CHECK(end.peak == 99);
    CHECK(with(killed, [](EndFacts& f) { f.after.oom_kills = 1; }).reason ==
          EndReason::host_pressure);
    // An OOM kill from before this run says nothing.
    CHECK(with(killed, [](EndFacts& f) { f.before.oom_kills = f.after.oom_kills = 1; }).reason ==
          EndReason::vmm_crash);
    // It also explains what the shim saw first, and a stop that came because of it.
    CHECK(with(killed, [](EndFacts& f) {
              f.after = {.oom_kills = 1, .limit_hits = 1};
              f.chosen = model::End{.reason = EndReason::agent_lost};
              f.stop = "stopped on request";
          }).reason == EndReason::oom);
    CHECK(with(killed, [](EndFacts& f) {
              f.killed_by_shim = true;
              f.after = {.oom_kills = 1, .limit_hits = 1}; // another process of the unit
              f.chosen = model::End{.reason = EndReason::timeout};
          }).reason == EndReason::timeout);

    end = with({.code = CLD_DUMPED, .status = SIGABRT, .last_stderr_line = "pthread_create failed"},
               [](EndFacts& f) { f.after = {.pids_refused = 1, .pids_limit = 40}; });
    CHECK(end.reason == EndReason::pids);
    CHECK(end.limit == 40);
    CHECK(end.detail.find("pthread_create failed") != std::string::npos);
    end = decide_end({.code = CLD_DUMPED, .status = SIGABRT, .last_stderr_line = "boom"});
    CHECK(end.reason == EndReason::vmm_crash);
    CHECK(end.detail == "QEMU was killed by SIGABRT: boom");

    CHECK(with(exited, [](EndFacts& f) { f.stop = "stopped on request"; }).reason ==
          EndReason::stopped);
    CHECK(with(killed, [](EndFacts& f) {
              f.stop = "stopped on request";
              f.killed_by_shim = true;
          }).reason == EndReason::stopped);
    CHECK(with(exited, [](EndFacts& f) { f.shutdown_reason = "guest-reset"; }).reason ==
          EndReason::stopped);
    CHECK(with(exited, [](EndFacts& f) {
              f.shutdown_reason = "guest-reset";
              f.was_ready = false;
          }).reason == EndReason::agent_lost);
    end = with(exited, [](EndFacts& f) {
        f.shutdown_reason = "guest-reset";
        f.panic = "VFS: Unable to mount root fs";
    });
    CHECK(end.reason == EndReason::agent_lost);
    CHECK(end.detail == "guest kernel panic: VFS: Unable to mount root fs");
    CHECK(decide_end(exited).reason == EndReason::vmm_crash);
}

TEST_CASE("console: tail, panic and the log's size") {
    auto loop = std::move(*event::Loop::create());
    auto [ours, theirs] = sockets();
    Fd log(::memfd_create("log", MFD_CLOEXEC));
    Fd append(::open(("/proc/self/fd/" + std::to_string(log.get())).c_str(),
                     O_RDWR | O_APPEND | O_CLOEXEC));
    auto console = std::move(*Console::create(loop, std::move(ours), std::move(append)));
    CHECK(console->tail().empty());
    const auto print = [&](std::string_view data) {
        REQUIRE(write_all(theirs.get(), data));
        console->drain();
    };
    print("hello\r\nworld\x07\r\n");
    CHECK(console->tail() == "hello\nworld\\x07");
    for (int i = 0; i < 40000; ++i) {
        print("line " + std::to_string(100000 + i) + " xxxxxxxxxxxxxxxxxxxx\r\n");
        if (i % 1000 == 0) {
            struct stat status {};
            REQUIRE(::fstat(log.get(), &status) == 0);
            REQUIRE(static_cast<std::uint64_t>(status.st_size) <= kMaxConsoleLog);
        }
    }
    CHECK(console->tail().starts_with("line 1"));
    CHECK(console->tail().ends_with("\nline 139999 xxxxxxxxxxxxxxxxxxxx"));
    CHECK(console->tail().size() <= control::kMaxConsoleTail);
    CHECK(console->panic().empty());
    print("[ 1.0] Kernel panic - not sync");
    print("ing: VFS: no root");
    CHECK(console->panic().empty());
    print("\x1b\r\nmore\r\n");
    CHECK(console->panic() == "VFS: no root\\x1b");
    theirs.reset();
    run(loop);
}

TEST_CASE("session table: relays both ways on a channel of its own") {
    auto loop = std::move(*event::Loop::create());
    struct Agent : GuestChannel::Handler {
        SessionTable* table = nullptr;
        std::string lost;
        void on_guest_frame(const wire::Frame& frame) override { table->on_guest_frame(frame); }
        void on_guest_batch() override { table->on_guest_batch(); }
        void on_guest_drained() override { table->on_guest_drained(); }
        void on_guest_lost(const std::string& why, bool) override { lost = why; }
    } handler;
    auto [host, guest] = sockets();
    auto channel = std::move(*GuestChannel::create(loop, std::move(host), handler));
    int changes = 0;
    SessionTable table(loop, [&] { ++changes; });
    handler.table = &table;
    table.attach(*channel);
    Listener agent(guest.get());
    const auto agent_says = [&](std::uint32_t on, FrameType type, std::uint8_t flag,
                                std::span<const std::byte> payload) {
        std::vector<std::byte> frame;
        wire::append_frame(frame, {.channel = on, .type = type, .flag = flag, .payload = payload});
        REQUIRE(write_all(guest.get(), frame));
        run(loop);
    };

    std::vector<Fd> clients;
    for (int i = 0; i < 2; ++i) {
        auto [client, theirs] = sockets();
        Fd request(::memfd_create("request", MFD_CLOEXEC));
        REQUIRE(write_all(request.get(), "request " + std::to_string(i)));
        table.open(std::move(theirs), std::move(request));
        clients.push_back(std::move(client));
    }
    run(loop);
    CHECK(table.size() == 2);
    CHECK(agent.take() == std::vector<Heard>{{1, FrameType::open, 0, "request 0"},
                                             {2, FrameType::open, 0, "request 1"}});
    for (const std::uint32_t on : {1, 2}) {
        agent_says(on, FrameType::opened, 0, wire::encode(wire::Opened{.pid = 5}));
    }
    Listener second(clients[1].get());
    CHECK(second.take().size() == 1);

    std::vector<std::byte> words;
    wire::append_credit(words, 0, Stream::out, 100);
    wire::append_frame(words, {.type = FrameType::eof, .flag = 0});
    REQUIRE(write_all(clients[1].get(), words));
    run(loop);
    const auto heard = agent.take();
    REQUIRE(heard.size() == 2);
    CHECK(heard[0].channel == 2);
    CHECK(heard[0].type == FrameType::credit);
    CHECK(heard[1].type == FrameType::eof);

    agent_says(2, FrameType::data, 1, bytes("hello"));
    agent_says(77, FrameType::data, 1, bytes("to nobody"));
    agent_says(2, FrameType::exit, 0, wire::encode(wire::Exit{.value = 3}));
    const auto got = second.take();
    REQUIRE(got.size() == 2);
    CHECK(got[0] == Heard{0, FrameType::data, 1, "hello"});
    CHECK(got[1].type == FrameType::exit);
    CHECK(second.take().empty());
    CHECK(second.ended());
    CHECK(table.size() == 1);

    clients[0].reset();
    run(loop);
    CHECK(agent.take() == std::vector<Heard>{{1, FrameType::close, 0, ""}});
    CHECK(table.size() == 0);
    CHECK(changes >= 3);

    table.close_all({.kind = wire::Failure::Kind::unreachable, .message = "gone"});
    auto [client, theirs] = sockets();
    table.open(std::move(theirs), Fd(::memfd_create("request", MFD_CLOEXEC)));
    Listener late(client.get());
    const auto refused = late.take();
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].type == FrameType::error);
    guest.reset();
    run(loop);
    CHECK(handler.lost == "the agent's channel was closed");
}
