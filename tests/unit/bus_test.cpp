#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "bus/connection.hpp"
#include "bus/dict.hpp"
#include "bus/error.hpp"

#include <stdexcept>

#include <doctest/doctest.h>

using namespace wd;
using bus::Dict;
using bus::DictBuilder;
using bus::DictReader;

TEST_CASE("dict: typed getters take what is there") {
    const Dict dict = DictBuilder()
                          .add("image", "base")
                          .add("cpus", std::uint32_t{2})
                          .add("labels", std::map<std::string, std::string>{{"k", "v"}})
                          .add("env", std::vector<std::string>{"A=1", "B="})
                          .add("name", std::string_view("x"))
                          .add("all", true)
                          .take();
    DictReader reader(dict);
    CHECK(reader.take<std::string>("image") == "base");
    CHECK(reader.take<std::uint32_t>("cpus") == 2u);
    CHECK_FALSE(reader.take<std::uint64_t>("memory").has_value());
    CHECK(reader.take<std::map<std::string, std::string>>("labels")->at("k") == "v");
    CHECK(reader.take<std::vector<std::string>>("env")->size() == 2);
    CHECK(reader.require<std::string>("name") == "x");
    CHECK(reader.take<bool>("all") == true);
    CHECK(reader.finish().has_value());
}

TEST_CASE("dict: an unknown key is an error that names it and the known ones") {
    const Dict dict = DictBuilder().add("memroy", std::uint64_t{1}).take();
    DictReader reader(dict);
    (void)reader.take<std::uint64_t>("memory");
    (void)reader.take<std::string>("image");
    const auto done = reader.finish();
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == ErrorCode::invalid_argument);
    CHECK(done.error().message == "unknown option \"memroy\"; known are: image, memory");

    DictReader none(dict);
    CHECK(none.finish().error().message == "unknown option \"memroy\"; there are none");
}

TEST_CASE("dict: an unknown key is quoted and cut") {
    const Dict dict = DictBuilder().add(std::string(300, 'a') + "\n", true).take();
    const auto done = DictReader(dict).finish();
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().message.size() < 200);
    CHECK(done.error().message.find('\n') == std::string::npos);
}

TEST_CASE("dict: a wrong type is an error that names key and types; no coercion") {
    const Dict dict = DictBuilder().add("cpus", std::uint64_t{2}).add("x", true).take();
    DictReader reader(dict);
    CHECK_FALSE(reader.take<std::uint32_t>("cpus").has_value());
    const auto done = reader.finish();
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().message == "option \"cpus\" must be an unsigned 32-bit number (u), not an "
                                  "unsigned 64-bit number (t)");
}

TEST_CASE("dict: a missing required key") {
    const Dict dict;
    DictReader reader(dict, "field");
    (void)reader.require<std::string>("id");
    CHECK(reader.finish().error().message == "field \"id\" is missing");
}

TEST_CASE("errors: the table goes both ways") {
    for (int i = 0; i < kErrorCodeCount; ++i) {
        const Error error{static_cast<ErrorCode>(i), 0, "text"};
        const Error back = bus::from_sdbus(bus::to_sdbus(error));
        CHECK(back.code == error.code);
        CHECK(back.message == "text");
    }
}

TEST_CASE("errors: foreign names get a code and keep their name") {
    const auto code = [](const char* name) {
        return bus::from_sdbus(bus::make_error(name, "text")).code;
    };
    CHECK(code("org.freedesktop.DBus.Error.ServiceUnknown") == ErrorCode::unreachable);
    CHECK(code("org.freedesktop.DBus.Error.AccessDenied") == ErrorCode::not_authorised);
    CHECK(code("org.freedesktop.DBus.Error.NoReply") == ErrorCode::unreachable);
    CHECK(code("org.freedesktop.systemd1.NoSuchUnit") == ErrorCode::not_found);
    CHECK(code("org.example.Whatever") == ErrorCode::internal);
    const Error error = bus::from_sdbus(bus::make_error("org.example.Whatever", "text"));
    CHECK(error.message == "text (org.example.Whatever)");
    CHECK(bus::from_sdbus(bus::make_error("System.Error.ENOENT", "")).errnum == ENOENT);
}

TEST_CASE("errors: guards keep exceptions on their side") {
    const auto thrown = bus::attempt([]() -> int { throw std::runtime_error("x"); });
    REQUIRE_FALSE(thrown.has_value());
    CHECK(thrown.error().code == ErrorCode::internal);
    CHECK(bus::attempt([] { return 3; }) == 3);
    CHECK_THROWS_AS(bus::guarded([] { throw std::runtime_error("x"); }), sdbus::Error);
    CHECK_THROWS_AS(bus::value_or_throw(Result<int>(fail(ErrorCode::limit, "x"))), sdbus::Error);
    CHECK(bus::value_or_throw(Result<int>(4)) == 4);
}
