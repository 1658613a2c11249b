#include "control/message.hpp"
#include "control/socket.hpp"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

using namespace wd;
using namespace wd::control;

TEST_CASE("a launch survives the way, with any bytes in its environment") {
    const std::string value = "X=\x01\x80\xff\xc3\xa9\n\"\\";
    const Launch launch{
        .accel = model::Accel::kvm,
        .qemu = "/usr/bin/qemu-system-x86_64",
        .cpus = 4,
        .memory_bytes = 1ull << 40,
        .restore = true,
        .layers = {{.qcow2 = false, .read_only = true}, {.qcow2 = true, .read_only = false}},
        .hostname = "box",
        .machine_id = std::string(32, 'a'),
        .env = {"A=1", value, "EMPTY="},
        .boot_timeout_ms = 30000,
        .probe = true};
    const auto request = decode_request(encode(Request(launch)));
    REQUIRE(request);
    const auto* got = std::get_if<Launch>(&*request);
    REQUIRE(got != nullptr);
    CHECK(got->accel == model::Accel::kvm);
    CHECK(got->qemu == launch.qemu);
    CHECK(got->cpus == 4);
    CHECK(got->memory_bytes == 1ull << 40);
    CHECK(got->restore);
    REQUIRE(got->layers.size() == 2);
    CHECK(!got->layers[0].qcow2);
    CHECK(got->layers[0].read_only);
    CHECK(got->layers[1].qcow2);
    CHECK(!got->layers[1].read_only);
    CHECK(got->hostname == "box");
    CHECK(got->machine_id == launch.machine_id);
    CHECK(got->env == launch.env);
    CHECK(got->boot_timeout_ms == 30000);
    CHECK(got->probe);
}

TEST_CASE("the largest environment fits into a message") {
    Launch launch{.env = {"A=" + std::string(128 * 1024 - 3, 'x')}};
    CHECK(encode(Request(launch)).size() <= kMaxMessage);
    CHECK(decode_request(encode(Request(launch))));
}

TEST_CASE("the other requests survive the way") {
    const auto session = decode_request(encode(Request(OpenSession{})));
    REQUIRE(session);
    CHECK(std::holds_alternative<OpenSession>(*session));
    const auto shutdown = decode_request(encode(Request(Shutdown{.deadline_ms = 1234})));
    REQUIRE(shutdown);
    REQUIRE(std::holds_alternative<Shutdown>(*shutdown));
    CHECK(std::get<Shutdown>(*shutdown).deadline_ms == 1234);
    const auto snapshot = decode_request(encode(Request(Snapshot{.compact = true})));
    REQUIRE(snapshot);
    REQUIRE(std::holds_alternative<Snapshot>(*snapshot));
    CHECK(std::get<Snapshot>(*snapshot).compact);
}

TEST_CASE("events survive the way") {
    for (const ShimState state : {ShimState::waiting, ShimState::launching, ShimState::running,
                                  ShimState::snapshotting, ShimState::ended}) {
        const auto event = decode_event(encode(Event(Hello{.state = state, .sessions = 7})));
        REQUIRE(event);
        REQUIRE(std::holds_alternative<Hello>(*event));
        CHECK(std::get<Hello>(*event).state == state);
        CHECK(std::get<Hello>(*event).sessions == 7);
        CHECK(std::get<Hello>(*event).version == kVersion);
    }
    const auto progress = decode_event(encode(Event(Progress{.phase = model::Phase::kernel})));
    REQUIRE(progress);
    CHECK(std::get<Progress>(*progress).phase == model::Phase::kernel);

    const Ready ready{.launch_us = 1,
                      .vmm_us = 2,
                      .hello_us = 3,
                      .ready_us = 4,
                      .guest_agent_us = 5,
                      .guest_mount_us = 6,
                      .guest_identity_us = 7,
                      .root_bytes = 8,
                      .agent_version = "0.1",
                      .kernel_release = "6.1"};
    const auto event = decode_event(encode(Event(ready)));
    REQUIRE(event);
    REQUIRE(std::holds_alternative<Ready>(*event));
    CHECK(encode(*event) == encode(Event(ready)));

    const auto snapshotted = decode_event(encode(Event(Snapshotted{.dirty_bytes = 5})));
    REQUIRE(snapshotted);
    REQUIRE(std::holds_alternative<Snapshotted>(*snapshotted));
    CHECK(std::get<Snapshotted>(*snapshotted).dirty_bytes == 5);
    const auto failed = decode_event(encode(Event(SnapshotFailed{.message = "no\x1b"})));
    REQUIRE(failed);
    REQUIRE(std::holds_alternative<SnapshotFailed>(*failed));
    CHECK(std::get<SnapshotFailed>(*failed).message.find('\x1b') == std::string::npos);
    const auto activity = decode_event(encode(Event(Activity{.sessions = 3})));
    REQUIRE(activity);
    REQUIRE(std::holds_alternative<Activity>(*activity));
    CHECK(std::get<Activity>(*activity).sessions == 3);

    const Ended ended{.end = {.reason = model::EndReason::oom,
                              .detail = "the unit exceeded its limit",
                              .limit = 10,
                              .peak = 11},
                      .console_tail = "a\nb",
                      .was_ready = true};
    const auto end = decode_event(encode(Event(ended)));
    REQUIRE(end);
    CHECK(encode(*end) == encode(Event(ended)));
}

TEST_CASE("what a hostile shim says is refused or made harmless") {
    for (const char* text :
         {"", "null", "[]", "\"hello\"", "{", "{}", R"({"op":1})", R"({"op":"exploit"})",
          R"({"op":"hello"})", R"({"op":"hello","version":1,"state":"king","sessions":0})",
          R"({"op":"hello","version":-1,"state":"running","sessions":0})",
          R"({"op":"hello","version":1,"state":"running","sessions":4294967296})",
          R"({"op":"hello","version":1,"state":"running","sessions":1.5})",
          R"({"op":"hello","version":1e99,"state":"running","sessions":1})",
          R"({"op":"progress","phase":"party"})", R"({"op":"progress","phase":["vmm"]})",
          R"({"op":"ended","reason":"boredom","detail":"","limit":0,"peak":0,)"
          R"("console_tail":"","was_ready":true})",
          R"({"op":"ended","reason":"oom","detail":"","limit":0,"peak":0,)"
          R"("console_tail":"","was_ready":"yes"})"}) {
        CAPTURE(text);
        const auto event = decode_event(text);
        REQUIRE(!event);
        CHECK(event.error().code == ErrorCode::invalid_argument);
        CHECK(event.error().message.size() < 300);
    }
    CHECK(!decode_event(std::string(kMaxMessage + 1, ' ')));
    CHECK(!decode_event(std::string(kMaxMessage, '[')));
    CHECK(!decode_event("{\"op\":\"" + std::string(100000, 'x') + "\"}"));
    CHECK(!decode_event("{\"op\":\"\xff\xfe\"}"));

    Ready ready{.agent_version = std::string(65, 'v')};
    CHECK(!decode_event(encode(Event(ready))));

    const auto event = decode_event(
        encode(Event(Ended{.end = {.reason = model::EndReason::vmm_crash,
                                   .detail = "\x1b]0;owned\x07" + std::string(100000, 'x')},
                           .console_tail = "line\n\x1b[2J\xff"})));
    REQUIRE(event);
    const auto& ended = std::get<Ended>(*event);
    CHECK(ended.end.detail.find('\x1b') == std::string::npos);
    CHECK(ended.end.detail.size() < 600);
    CHECK(ended.console_tail.starts_with("line\n\\x1b[2J"));
}

TEST_CASE("requests that make no sense are refused") {
    for (const char* text :
         {R"({"op":"launch"})", R"({"op":"shutdown"})", R"({"op":"shutdown","deadline_ms":-1})",
          R"({"op":"shutdown","deadline_ms":99999999999})", R"({"op":"hello"})",
          R"({"op":"launch","accel":"magic"})"}) {
        CAPTURE(text);
        CHECK(!decode_request(text));
    }
    const std::string launch = encode(Request(Launch{}));
    CHECK(decode_request(launch));
    const auto with_layers = [&](const char* layers) {
        std::string text = launch;
        text.replace(text.find("\"layers\":[]"), 11, std::string("\"layers\":") + layers);
        return decode_request(text).has_value();
    };
    CHECK(with_layers(R"([{"qcow2":true,"read_only":false}])"));
    CHECK(!with_layers(R"([1])"));
    CHECK(!with_layers(R"([{"qcow2":true}])"));
    CHECK(!with_layers(R"({"qcow2":true})"));
}

TEST_CASE("exit status and reason are told apart both ways") {
    using model::EndReason;
    for (const EndReason reason :
         {EndReason::stopped, EndReason::oom, EndReason::pids, EndReason::disk, EndReason::timeout,
          EndReason::policy, EndReason::vmm_crash, EndReason::host_pressure,
          EndReason::agent_lost}) {
        CHECK(reason_of_exit_status(exit_status_of(reason)) == reason);
    }
    CHECK(exit_status_of(EndReason::none) == 1);
    for (const int status : {1, 2, 127, 200, 255}) {
        CHECK(!reason_of_exit_status(status));
    }
}

namespace {

std::size_t open_descriptors() {
    std::size_t count = 0;
    for (int fd = 0; fd < 256; ++fd) {
        count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    }
    return count;
}

} // namespace

TEST_CASE("packets carry descriptors, and too large ones leave none behind") {
    const std::size_t before = open_descriptors();
    {
        auto pair = socket_pair(SOCK_SEQPACKET | SOCK_NONBLOCK);
        REQUIRE(pair);
        const auto nothing = receive_packet(pair->second.get(), 100);
        REQUIRE(!nothing);
        CHECK(nothing.error().errnum == EAGAIN);

        const int fds[] = {0, pair->first.get()};
        REQUIRE(send_packet(pair->first.get(), "hello", fds));
        auto packet = receive_packet(pair->second.get(), 100);
        REQUIRE(packet);
        CHECK(packet->text == "hello");
        REQUIRE(packet->fds.size() == 2);
        CHECK((::fcntl(packet->fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
        packet->fds.clear();

        REQUIRE(send_packet(pair->first.get(), std::string(101, 'x'), fds));
        const auto large = receive_packet(pair->second.get(), 100);
        REQUIRE(!large);
        CHECK(large.error().code == ErrorCode::invalid_argument);

        pair->first.reset();
        const auto end = receive_packet(pair->second.get(), 100);
        REQUIRE(!end);
        CHECK(end.error().code == ErrorCode::unreachable);
    }
    CHECK(open_descriptors() == before);
}

TEST_CASE("a socket by path: connect, listen again over a stale one, nobody there") {
    char folder[] = "/tmp/wd-control-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    const std::string path = std::string(folder) + "/control";
    CHECK(connect_to(path).error().code == ErrorCode::unreachable);
    { REQUIRE(listen_at(path)); }
    CHECK(connect_to(path).error().code == ErrorCode::unreachable); // stale
    auto listener = listen_at(path);
    REQUIRE(listener);
    auto client = connect_to(path);
    REQUIRE(client);
    // Queued before anyone has accepted: a largest launch as well.
    CHECK(send_packet(client->get(), std::string(kMaxMessage, 'x')));
    const Fd server(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    auto packet = receive_packet(server.get(), kMaxMessage);
    REQUIRE(packet);
    CHECK(packet->text.size() == kMaxMessage);
    CHECK(connect_to("/" + std::string(200, 'x')).error().code == ErrorCode::invalid_argument);
    ::unlink(path.c_str());
    ::rmdir(folder);
}
