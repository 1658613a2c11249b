#include "vmm/command_line.hpp"
#include "vmm/line_reader.hpp"
#include "vmm/memory_image.hpp"
#include "vmm/qmp_client.hpp"
#include "vmm/qmp_message.hpp"
#include "vmm/tsc.hpp"

#include "util/fd.hpp"

#include <csignal>
#include <cstring>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

using namespace wd;
using namespace wd::vmm;

namespace {

// An option and its value a line.
std::string lines(const std::vector<std::string>& argv) {
    std::string text;
    for (std::size_t i = 0; i < argv.size(); ++i) {
        const bool value = i + 1 < argv.size() && argv[i + 1][0] != '-';
        text += argv[i] + (i > 0 && argv[i][0] == '-' && value ? " " : "\n");
    }
    return text;
}

std::string machine(const char* rtc) {
    return std::string("-M microvm,rtc=") + rtc +
           ",acpi=off,isa-serial=on,x-option-roms=off,memory-backend=ram0,suppress-vmdesc=on\n";
}

constexpr const char* kSandbox =
    "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny\n";
std::string middle(const char* sandbox, const char* clock) {
    return std::string("-nodefaults\n"
                       "-no-user-config\n"
                       "-nographic\n"
                       "-no-reboot\n") +
           sandbox +
           std::string("-kernel /proc/self/fd/10\n"
                       "-initrd /proc/self/fd/11\n"
                       "-append console=ttyS0 reboot=t panic=-1 no_timer_check quiet "
                       "dummy.numdummies=0 ifb.numifbs=0") +
           clock +
           "\n"
           "-chardev socket,id=qmp,fd=12\n"
           "-mon chardev=qmp,mode=control\n"
           "-chardev socket,id=console,fd=14\n"
           "-serial chardev:console\n"
           "-global virtio-mmio.force-legacy=false\n"
           "-device virtio-serial-device\n"
           "-chardev socket,id=agent,fd=13\n"
           "-device virtserialport,id=agent-port,chardev=agent,name=dev.workdir.agent\n";
}
constexpr const char* kEnd = "-device virtio-balloon-device,free-page-reporting=on\n"
                             "-device virtio-rng-device\n";

VmConfig config() {
    return {.qemu = "/usr/bin/qemu-system-x86_64",
            .accel = model::Accel::tcg,
            .cpus = 1,
            .memory_bytes = 512ull << 20,
            .tsc_khz = 2'000'000,
            .memory_fd = 15,
            .state_fd = 16,
            .kernel_fd = 10,
            .initrd_fd = 11,
            .qmp_fd = 12,
            .agent_fd = 13,
            .console_fd = 14};
}

} // namespace

TEST_CASE("command line: TCG, one processor, no disk (the probe)") {
    CHECK(lines(command_line(config())) ==
          "/usr/bin/qemu-system-x86_64\n" + machine("on") +
              "-accel tcg,tb-size=64,thread=single\n"
              "-cpu max,-erms,-fsrm\n"
              "-smp 1\n"
              "-m size=512M\n"
              "-object memory-backend-file,id=ram0,size=512M,mem-path=/proc/self/fd/15,share=on\n"
              "-global migration.send-configuration=off\n"
              "-add-fd fd=16,set=100\n" +
              middle(kSandbox, " tsc=reliable tsc_early_khz=2000000 lpj=8000000") + kEnd);
}

TEST_CASE("command line: KVM, four processors, image and layer") {
    VmConfig vm = config();
    vm.qemu = "/usr/bin/qemu-system-x86_64-microvm";
    vm.accel = model::Accel::kvm;
    vm.cpus = 4;
    vm.memory_bytes = (1ull << 30) + 4096;
    vm.layers = {{.fd = 20, .qcow2 = false, .read_only = true},
                 {.fd = 21, .qcow2 = true, .read_only = false}};
    CHECK(lines(command_line(vm)) ==
          "/usr/bin/qemu-system-x86_64-microvm\n" + machine("off") +
              "-accel kvm\n"
              "-cpu host\n"
              "-smp 4\n"
              "-m size=1073745920B\n"
              "-object memory-backend-file,id=ram0,size=1073745920B,mem-path=/proc/self/fd/15,"
              "share=on\n"
              "-global migration.send-configuration=off\n"
              "-add-fd fd=16,set=100\n" +
              middle("", "") +
              R"(-add-fd fd=20,set=1
-blockdev {"driver":"file","node-name":"f0","filename":"/dev/fdset/1","read-only":true,"locking":"off","aio":"threads","cache":{"direct":false,"no-flush":false},"discard":"ignore"}
-blockdev {"driver":"raw","node-name":"l0","file":"f0","read-only":true}
-add-fd fd=21,set=2
-blockdev {"driver":"file","node-name":"f1","filename":"/dev/fdset/2","read-only":false,"locking":"off","aio":"threads","cache":{"direct":false,"no-flush":false},"discard":"unmap"}
-blockdev {"driver":"qcow2","node-name":"l1","file":"f1","read-only":false,"backing":"l0","discard":"unmap","detect-zeroes":"unmap"}
-device virtio-blk-device,drive=l1,werror=enospc,rerror=report
)" + kEnd);
}

TEST_CASE("command line: TCG with several processors, three layers, the lowest a qcow2") {
    VmConfig vm = config();
    vm.cpus = 2;
    vm.layers = {{.fd = 30, .qcow2 = true, .read_only = true},
                 {.fd = 31, .qcow2 = true, .read_only = true},
                 {.fd = 32, .qcow2 = true, .read_only = false}};
    const std::string text = lines(command_line(vm));
    CHECK(text.find("-accel tcg,tb-size=64,thread=multi\n-cpu max,-erms,-fsrm\n-smp 2\n") !=
          text.npos);
    CHECK(text.find(R"("node-name":"l0","file":"f0","read-only":true,"backing":null})") !=
          text.npos);
    CHECK(text.find(R"("node-name":"l1","file":"f1","read-only":true,"backing":"l0"})") !=
          text.npos);
    CHECK(text.find(R"("node-name":"l2","file":"f2","read-only":false,"backing":"l1",)") !=
          text.npos);
    CHECK(text.find("drive=l2,") != text.npos);
}

TEST_CASE("command line: memory of its own, and that of a snapshot") {
    VmConfig vm = config();
    vm.memory_fd = 40;
    vm.state_fd = 41;
    const std::string made = lines(command_line(vm));
    CHECK(made.find("-object memory-backend-file,id=ram0,size=512M,mem-path=/proc/self/fd/40,"
                    "share=on\n") != made.npos);
    CHECK(made.find("-add-fd fd=41,set=100\n") != made.npos);
    CHECK(made.find("-incoming") == made.npos);
    CHECK(save_state_arguments() == R"({"filename":"/dev/fdset/100","live":false})");
    vm.restore = true;
    const std::string restored = lines(command_line(vm));
    CHECK(restored.find("-object memory-backend-file,id=ram0,size=512M,mem-path=/proc/self/fd/40,"
                        "share=off\n") != restored.npos);
    CHECK(restored.find("-incoming defer\n") != restored.npos);
    CHECK(restored.find("-add-fd fd=41,set=100\n") != restored.npos);
    CHECK(load_state_arguments(41) == R"({"uri":"fd:41"})");
}

TEST_CASE("the frequency of the TSC: two measurements agree") {
    const auto one = static_cast<double>(measure_tsc_khz());
    const auto other = static_cast<double>(measure_tsc_khz());
    CHECK(one > 500'000); // half a GHz: slower than any machine with KVM
    CHECK(other == doctest::Approx(one).epsilon(0.001));
}

TEST_CASE("lines are cut where they end, whatever pieces they come in") {
    const std::string text = "one\r\ntwo\n\nthree";
    for (std::size_t step = 1; step <= text.size(); ++step) {
        LineReader reader(10, LineReader::Overlong::fail);
        std::vector<std::string> got;
        for (std::size_t at = 0; at < text.size(); at += step) {
            reader.feed(std::string_view(text).substr(at, step));
            while (const auto line = reader.next()) {
                got.emplace_back(*line);
            }
        }
        CHECK(got == std::vector<std::string>{"one", "two", ""});
        CHECK(reader.rest() == "three");
    }
}

TEST_CASE("a line that is too long breaks the stream, or is cut") {
    for (const std::size_t step : {1u, 3u, 100u}) {
        const std::string text = "0123456789abcdef\nnext\n";
        LineReader strict(10, LineReader::Overlong::fail);
        LineReader cutting(10, LineReader::Overlong::cut);
        std::vector<std::string> got;
        for (std::size_t at = 0; at < text.size(); at += step) {
            strict.feed(std::string_view(text).substr(at, step));
            CHECK(!strict.next());
            cutting.feed(std::string_view(text).substr(at, step));
            while (const auto line = cutting.next()) {
                got.emplace_back(*line);
            }
        }
        CHECK(strict.failed());
        CHECK(got == std::vector<std::string>{"0123456789", "next"});
    }
}

TEST_CASE("QMP messages") {
    auto greeting = parse_qmp(R"({"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7}}}})");
    REQUIRE(greeting);
    CHECK(std::get<QmpGreeting>(*greeting).version == "7.2.22");
    auto good = parse_qmp(R"({"return":{},"id":3})");
    REQUIRE(good);
    CHECK(std::get<QmpReply>(*good).good);
    CHECK(std::get<QmpReply>(*good).id == 3);
    auto bad = parse_qmp(R"({"error":{"class":"GenericError","desc":"no\u001b"},"id":4})");
    REQUIRE(bad);
    CHECK(!std::get<QmpReply>(*bad).good);
    CHECK(std::get<QmpReply>(*bad).error == "no\\x1b");
    auto event = parse_qmp(
        R"({"timestamp":{},"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-reset"}})");
    REQUIRE(event);
    CHECK(std::get<QmpEvent>(*event).name == "SHUTDOWN");
    CHECK(std::get<QmpEvent>(*event).guest);
    CHECK(std::get<QmpEvent>(*event).reason == "guest-reset");
    CHECK(qmp_command("quit", 7) == "{\"execute\":\"quit\",\"id\":7}\n");
}

TEST_CASE("QMP that makes no sense") {
    for (const std::string& line :
         {std::string(), std::string("{}"), std::string("[]"), std::string("nonsense"),
          std::string("{\"event\":"), std::string(100, '['), std::string("{\"a\":\"\xff\"}"),
          "{\"event\":" + std::string(20, '[') + std::string(20, ']') + "}",
          std::string(kMaxQmpLine + 1, ' ')}) {
        CAPTURE(line.substr(0, 40));
        CHECK(!parse_qmp(line));
    }
    // Members of the wrong type are as good as none.
    auto event = parse_qmp(R"({"event":["x"],"data":7,"id":-1})");
    REQUIRE(event);
    CHECK(std::get<QmpEvent>(*event).name.empty());
    // Brackets in strings do not count.
    CHECK(
        parse_qmp("{\"event\":\"" + std::string(50, '[') + "\\\"" + std::string(50, '{') + "\"}"));
}

namespace {

struct Peer {
    event::Loop loop = std::move(*event::Loop::create());
    Fd far;
    std::unique_ptr<QmpClient> client;
    std::vector<std::string> log;

    Peer() {
        auto pair = socket_pair(SOCK_STREAM | SOCK_NONBLOCK);
        far = std::move(pair->second);
        client = std::move(*QmpClient::create(
            loop, std::move(pair->first),
            {.on_greeting =
                 [this](const QmpGreeting& g) { log.push_back("greeting " + g.version); },
             .on_event = [this](const QmpEvent& e) { log.push_back("event " + e.name); },
             .on_lost = [this](const Error& e) { log.push_back("lost: " + e.message); }}));
    }
    void say(std::string_view text) {
        REQUIRE(write_all(far.get(), text));
        run();
    }
    void run() {
        while (sd_event_run(loop.get(), 0) > 0) {
        }
    }
    std::string heard() {
        char buffer[4096];
        const ssize_t n = ::read(far.get(), buffer, sizeof buffer);
        return {buffer, n > 0 ? static_cast<std::size_t>(n) : 0};
    }
};

} // namespace

TEST_CASE("QMP client: greeting, commands in order, events between") {
    Peer peer;
    peer.say("{\"QMP\":{}}\r\n");
    CHECK(peer.log.back() == "greeting 0.0.0");
    REQUIRE(peer.client->execute("one", [&](const Result<void>& r) {
        peer.log.push_back(r ? "one done" : r.error().message);
    }));
    REQUIRE(peer.client->execute("two", [&](const Result<void>& r) {
        peer.log.push_back(r ? "two done" : r.error().message);
    }));
    CHECK(peer.heard() == "{\"execute\":\"one\",\"id\":1}\n{\"execute\":\"two\",\"id\":2}\n");
    peer.say("{\"return\":{},\"id\":1}\n{\"event\":\"STOP\"}\n{\"err");
    peer.say("or\":{\"desc\":\"cannot\"},\"id\":2}\n");
    CHECK(peer.log ==
          std::vector<std::string>{"greeting 0.0.0", "one done", "event STOP", "QEMU: cannot"});
}

TEST_CASE("QMP client: what ends the connection, once") {
    for (const std::string& text :
         {std::string("what\n"), std::string("{\"return\":{},\"id\":1}\n"),
          std::string("{\"QMP\":{}}\n{\"QMP\":{}}\n{\"QMP\":{}}\n"), std::string(300000, 'x')}) {
        CAPTURE(text.substr(0, 30));
        Peer peer;
        std::size_t at = 0;
        while (at < text.size()) {
            const ssize_t n = ::send(peer.far.get(), text.data() + at, text.size() - at,
                                     MSG_NOSIGNAL | MSG_DONTWAIT);
            at += n > 0 ? static_cast<std::size_t>(n) : 0;
            peer.run();
        }
        peer.run();
        REQUIRE(!peer.log.empty());
        CHECK(peer.log.back().starts_with("lost: QEMU "));
        CHECK(peer.log.size() <= 2);
        CHECK(!peer.client->execute("quit"));
    }
    Peer peer;
    peer.far.reset();
    peer.run();
    CHECK(peer.log == std::vector<std::string>{"lost: QEMU closed its QMP connection"});
}

TEST_CASE("QMP client: commands nobody answers are bounded") {
    Peer peer;
    int taken = 0;
    while (peer.client->execute("x")) {
        ++taken;
    }
    CHECK(taken == 64);
}

TEST_CASE("QMP client: a handler may destroy it") {
    Peer peer;
    REQUIRE(peer.client->execute("x", [&](const Result<void>&) { peer.client.reset(); }));
    peer.say("{\"return\":{},\"id\":1}\n{\"event\":\"STOP\"}\nnonsense\n");
    CHECK(peer.log.empty());
}

TEST_CASE("memory image: the file, and over it what a process wrote to its private pages") {
    constexpr std::uint64_t kBytes = 64ull << 20;
    constexpr std::uint64_t kPage = 4096;
    const Fd base(::memfd_create("base", MFD_CLOEXEC));
    const Fd out(::memfd_create("out", MFD_CLOEXEC));
    REQUIRE(::ftruncate(base.get(), kBytes) == 0);
    const std::string a(kPage, 'a');
    const std::string b(kPage, 'b');
    const auto put = [&](std::uint64_t page) {
        REQUIRE(::pwrite(base.get(), a.data(), kPage, static_cast<off_t>(page * kPage)) == kPage);
    };
    put(0);
    put(1);
    put(2);
    put(9000);
    const auto page_of = [&](int fd, std::uint64_t page) {
        std::string text(kPage, '?');
        REQUIRE(::pread(fd, text.data(), kPage, static_cast<off_t>(page * kPage)) == kPage);
        return text;
    };
    SUBCASE("shared") {
        const auto stats =
            write_memory_image({.fd = base.get(), .shared = true, .bytes = kBytes}, out.get());
        REQUIRE(stats);
        CHECK(stats->base_bytes == 4 * kPage);
        CHECK(page_of(out.get(), 2) == a);
        CHECK(page_of(out.get(), 9000) == a);
        CHECK(page_of(out.get(), 3) == std::string(kPage, '\0'));
    }
    SUBCASE("private") {
        int ready[2];
        REQUIRE(::pipe(ready) == 0);
        const pid_t child = ::fork();
        if (child == 0) {
            auto* const memory = static_cast<char*>(
                ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, base.get(), 0));
            std::memset(memory + kPage, 'b', kPage);        // changed
            std::memset(memory + 2 * kPage, 0, kPage);      // cleared
            std::memset(memory + 5000 * kPage, 'b', kPage); // where there was none
            std::memset(memory + 5001 * kPage, 0, kPage);   // touched, and still zeros
            (void)*static_cast<volatile char*>(memory);     // only read
            (void)!::write(ready[1], "x", 1);
            ::pause();
            ::_exit(0);
        }
        char byte = 0;
        REQUIRE(::read(ready[0], &byte, 1) == 1);
        const auto stats = write_memory_image(
            {.fd = base.get(), .shared = false, .qemu = child, .bytes = kBytes}, out.get());
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        REQUIRE(stats);
        CHECK(stats->dirty_bytes == 4 * kPage);
        CHECK(page_of(out.get(), 0) == a);
        CHECK(page_of(out.get(), 1) == b);
        CHECK(page_of(out.get(), 2) == std::string(kPage, '\0'));
        CHECK(page_of(out.get(), 5000) == b);
        CHECK(page_of(out.get(), 9000) == a);
        CHECK(page_of(base.get(), 1) == a);
        struct stat info {};
        REQUIRE(::fstat(out.get(), &info) == 0);
        CHECK(static_cast<std::uint64_t>(info.st_blocks) * 512 <= 4 * kPage); // holes
        // And one that is not there any more, or maps something else, is an error.
        CHECK(!write_memory_image(
            {.fd = base.get(), .shared = false, .qemu = child, .bytes = kBytes}, out.get()));
        CHECK(!write_memory_image(
            {.fd = base.get(), .shared = false, .qemu = ::getpid(), .bytes = kBytes}, out.get()));
        ::close(ready[0]);
        ::close(ready[1]);
    }
}
