#define DOCTEST_CONFIG_IMPLEMENT
// bus::Connection in an event::Loop, against a private dbus-daemon. Exit status 77, which meson
// counts as a skip, where there is no dbus-daemon.
#include "bus/connection.hpp"
#include "bus/error.hpp"
#include "event/sources.hpp"
#include "util/file.hpp"

#include <csignal>
#include <cstdlib>
#include <string>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

using namespace wd;
using namespace std::chrono_literals;

namespace {

constexpr const char* kConfig = R"(<busconfig><type>custom</type><listen>unix:tmpdir=/tmp</listen>
<policy context="default"><allow user="*"/><allow own="*"/><allow eavesdrop="true"/>
<allow send_destination="*" eavesdrop="true"/></policy></busconfig>)";

// A dbus-daemon of our own; DBUS_SYSTEM_BUS_ADDRESS points to it.
class PrivateBus {
public:
    PrivateBus() {
        char config[] = "/tmp/wd-bus-XXXXXX";
        const Fd file(::mkstemp(config));
        REQUIRE(write_all(file.get(), kConfig).has_value());
        int out[2];
        REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
        const Fd read_end(out[0]);
        const std::string option = std::string("--config-file=") + config;
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, out[1], 1);
        const char* argv[] = {"dbus-daemon", option.c_str(),    "--nofork",
                              "--nopidfile", "--print-address", nullptr};
        REQUIRE(::posix_spawnp(&pid_, argv[0], &actions, nullptr, const_cast<char**>(argv),
                               environ) == 0);
        posix_spawn_file_actions_destroy(&actions);
        ::close(out[1]);
        std::string address;
        char c = 0;
        while (::read(read_end.get(), &c, 1) == 1 && c != '\n') {
            address += c;
        }
        ::unlink(config);
        REQUIRE(address.starts_with("unix:"));
        ::setenv("DBUS_SYSTEM_BUS_ADDRESS", address.c_str(), 1);
    }
    PrivateBus(const PrivateBus&) = delete;
    PrivateBus& operator=(const PrivateBus&) = delete;
    ~PrivateBus() { stop(); }
    void stop() {
        if (pid_ > 0) {
            ::kill(pid_, SIGTERM);
            ::waitpid(pid_, nullptr, 0);
            pid_ = 0;
        }
    }

private:
    pid_t pid_ = 0;
};

// Another client, driven by hand.
class Other {
public:
    Other() { REQUIRE(sd_bus_open_system(&bus_) >= 0); }
    Other(const Other&) = delete;
    Other& operator=(const Other&) = delete;
    ~Other() { sd_bus_flush_close_unref(bus_); }

    void emit(int count) {
        for (int i = 0; i < count; ++i) {
            REQUIRE(sd_bus_emit_signal(bus_, "/test", "test.Test", "Tick", "i", i) >= 0);
        }
        REQUIRE(sd_bus_flush(bus_) >= 0);
    }
    std::string name() const {
        const char* unique = nullptr;
        REQUIRE(sd_bus_get_unique_name(bus_, &unique) >= 0);
        return unique;
    }

private:
    sd_bus* bus_ = nullptr;
};

event::Loop make_loop() {
    auto loop = event::Loop::create();
    REQUIRE(loop.has_value());
    return std::move(*loop);
}

bus::Connection connect(const event::Loop& loop) {
    auto connection = bus::Connection::open_system(loop);
    REQUIRE_MESSAGE(connection.has_value(), connection.error().message);
    return std::move(*connection);
}

// Ends a test that hangs, with a code that no test expects.
event::Timer deadline(event::Loop& loop) {
    auto timer = event::Timer::create(loop, 20s, [&loop] { loop.exit(99); });
    REQUIRE(timer.has_value());
    return std::move(*timer);
}

} // namespace

TEST_CASE("a call that a timer makes is sent, and its reply comes") {
    PrivateBus daemon;
    auto loop = make_loop();
    const auto guard = deadline(loop);
    auto connection = connect(loop);
    auto proxy = bus::make_proxy(connection.get(), "org.freedesktop.DBus", "/org/freedesktop/DBus");
    int replies = 0;
    int rounds = 0;
    event::Timer timer;
    std::function<void()> again = [&] {
        if (++rounds > 20) {
            loop.exit(0);
            return;
        }
        // Nothing of the bus is going on: only the prepare step can see the message in the queue.
        auto call = proxy->createMethodCall("org.freedesktop.DBus", "GetId");
        proxy->callMethod(call, [&](sdbus::MethodReply&, bus::ReplyError error) {
            CHECK_FALSE(error);
            ++replies;
            timer = *event::Timer::create(loop, 1ms, again);
        });
    };
    timer = *event::Timer::create(loop, 1ms, again);
    CHECK(loop.run() == 0);
    CHECK(replies == 20);
}

TEST_CASE("thousands of messages at once all arrive, and others get their turn between") {
    PrivateBus daemon;
    auto loop = make_loop();
    const auto guard = deadline(loop);
    auto connection = connect(loop);
    constexpr int kCount = 5000;
    int got = 0;
    int turns = 0;
    int turns_before_last = 0;
    auto slot = bus::add_match(connection.get(), "type='signal',interface='test.Test'",
                               [&](sdbus::Message& message) {
                                   int value = -1;
                                   message >> value;
                                   CHECK(value == got);
                                   if (++got == kCount) {
                                       turns_before_last = turns;
                                       loop.exit(0);
                                   }
                               });
    Other other;
    other.emit(kCount);
    event::Timer timer;
    std::function<void()> turn = [&] {
        ++turns;
        timer = *event::Timer::create(loop, 0us, turn);
    };
    turn();
    CHECK(loop.run() == 0);
    CHECK(got == kCount);
    CHECK(turns_before_last > 1);
}

TEST_CASE("a call that nobody answers times out in time") {
    PrivateBus daemon;
    auto loop = make_loop();
    const auto guard = deadline(loop);
    auto connection = connect(loop);
    Other silent; // on the bus, but its messages are never processed
    auto proxy = bus::make_proxy(connection.get(), silent.name(), "/test");
    auto call = proxy->createMethodCall("test.Test", "Hang");
    const auto start = std::chrono::steady_clock::now();
    ErrorCode code = ErrorCode::exists;
    proxy->callMethod(
        call,
        [&](sdbus::MethodReply&, bus::ReplyError error) {
            REQUIRE(error);
            code = bus::from_sdbus(*error).code;
            loop.exit(0);
        },
        50'000);
    CHECK(loop.run() == 0);
    const auto took = std::chrono::steady_clock::now() - start;
    CHECK((code == ErrorCode::timeout || code == ErrorCode::unreachable));
    CHECK(took >= 45ms);
    CHECK(took < 10s);
}

TEST_CASE("a name can be taken once") {
    PrivateBus daemon;
    auto loop = make_loop();
    auto one = connect(loop);
    auto two = connect(loop);
    CHECK(one.request_name("test.Name").has_value());
    const auto again = two.request_name("test.Name");
    REQUIRE_FALSE(again.has_value());
    CHECK(again.error().message.find("test.Name") != std::string::npos);
}

TEST_CASE("the end of the bus is told once, and the loop lives") {
    PrivateBus daemon;
    auto loop = make_loop();
    const auto guard = deadline(loop);
    auto connection = connect(loop);
    int lost = 0;
    event::Timer timer;
    connection.on_lost([&](const Error&) {
        ++lost;
        timer = *event::Timer::create(loop, 50ms, [&] { loop.exit(0); });
    });
    auto stop = *event::Defer::create(loop, [&] { daemon.stop(); });
    CHECK(loop.run() == 0);
    CHECK(lost == 1);
}

TEST_CASE("a connection may be destroyed by its own handler") {
    PrivateBus daemon;
    auto loop = make_loop();
    const auto guard = deadline(loop);
    auto connection = std::make_unique<bus::Connection>(connect(loop));
    connection->on_lost([&](const Error&) {
        connection.reset();
        loop.exit(0);
    });
    auto stop = *event::Defer::create(loop, [&] { daemon.stop(); });
    CHECK(loop.run() == 0);
    CHECK_FALSE(connection);
}

TEST_CASE("flush writes what is queued before an exit") {
    PrivateBus daemon;
    auto loop = make_loop();
    {
        auto connection = connect(loop);
        auto proxy =
            bus::make_proxy(connection.get(), "org.freedesktop.DBus", "/org/freedesktop/DBus");
        for (int i = 0; i < 100; ++i) {
            auto call = proxy->createMethodCall("org.freedesktop.DBus", "GetId");
            proxy->callMethod(call, [](sdbus::MethodReply&, bus::ReplyError) {});
        }
        connection.flush();
        CHECK((connection->getEventLoopPollData().events & POLLOUT) == 0);
    }
}

TEST_CASE("no bus: unreachable") {
    ::setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus", 1);
    auto loop = make_loop();
    const auto connection = bus::Connection::open_system(loop);
    REQUIRE_FALSE(connection.has_value());
    CHECK(connection.error().code == ErrorCode::unreachable);
}

int main(int argc, char** argv) {
    if (::access("/usr/bin/dbus-daemon", X_OK) != 0) {
        return 77;
    }
    doctest::Context context(argc, argv);
    return context.run();
}
