#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "wire/frame.hpp"
#include "wire/message.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>

using namespace wd::wire;

namespace {

View view(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text(View bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes framed(std::uint32_t channel, FrameType type, std::uint8_t flag, std::string_view payload) {
    Bytes out;
    append_frame(out, {.channel = channel, .type = type, .flag = flag, .payload = view(payload)});
    return out;
}

struct Owned {
    std::uint32_t channel;
    FrameType type;
    std::uint8_t flag;
    std::string payload;
    bool operator==(const Owned&) const = default;
};

std::vector<Owned> drain(FrameReader& reader) {
    std::vector<Owned> out;
    while (const auto frame = reader.next()) {
        out.push_back({frame->channel, frame->type, frame->flag, text(frame->payload)});
    }
    return out;
}

constexpr FrameType kAllTypes[] = {
    FrameType::hello, FrameType::setup,       FrameType::ready,   FrameType::failed,
    FrameType::ping,  FrameType::pong,        FrameType::open,    FrameType::shutdown,
    FrameType::data,  FrameType::open_failed, FrameType::eof,     FrameType::opened,
    FrameType::exit,  FrameType::credit,      FrameType::signal,  FrameType::detach,
    FrameType::close, FrameType::error,       FrameType::quiesce, FrameType::quiesced,
};

} // namespace

TEST_CASE("the header is as documented") {
    const Bytes bytes = framed(0x01020304, FrameType::data, 2, "abc");
    const unsigned char expected[] = {4, 3, 2, 1, 3, 0, 0, 0, 0x13, 2, 0, 0, 'a', 'b', 'c'};
    REQUIRE(bytes.size() == sizeof expected);
    CHECK(std::memcmp(bytes.data(), expected, sizeof expected) == 0);
    std::byte head[kHeaderSize];
    put_header(head, 0x01020304, FrameType::data, 2, 3);
    CHECK(std::memcmp(head, expected, kHeaderSize) == 0);
    CHECK(kHeaderSize + kDataChunk == 32 * 1024);
    CHECK(kDataChunk <= kMaxPayload);
}

TEST_CASE("every frame type passes, split at every byte") {
    Bytes stream;
    std::vector<Owned> expected;
    for (const FrameType type : kAllTypes) {
        const std::string payload(static_cast<std::size_t>(type) % 7, 'p');
        const Bytes one = framed(static_cast<std::uint32_t>(type) * 1000, type, 1, payload);
        stream.insert(stream.end(), one.begin(), one.end());
        expected.push_back({static_cast<std::uint32_t>(type) * 1000, type, 1, payload});
    }
    for (std::size_t split = 0; split <= stream.size(); ++split) {
        FrameReader reader;
        reader.feed(View(stream).first(split));
        auto got = drain(reader);
        reader.feed(View(stream).subspan(split));
        for (auto& frame : drain(reader)) {
            got.push_back(std::move(frame));
        }
        REQUIRE(got == expected);
        CHECK(reader.buffered() == 0);
        CHECK(reader.violation() == FrameReader::Violation::none);
    }
    FrameReader by_byte;
    std::vector<Owned> got;
    for (const std::byte b : stream) {
        by_byte.feed({&b, 1});
        for (auto& frame : drain(by_byte)) {
            got.push_back(std::move(frame));
        }
    }
    CHECK(got == expected);
}

TEST_CASE("prepare and commit are feed without the copy") {
    std::string long_text(kMaxPayload, 'x');
    for (std::size_t i = 0; i < long_text.size(); ++i) {
        long_text[i] = static_cast<char>(i * 31);
    }
    Bytes stream;
    for (int i = 0; i < 5; ++i) {
        append_frame(
            stream, {.channel = 7, .type = FrameType::data, .flag = 0, .payload = view(long_text)});
        append_credit(stream, 7, Stream::in, 5);
    }
    for (const std::size_t step : {std::size_t{1000}, std::size_t{4096}, std::size_t{70000}}) {
        FrameReader reader;
        View rest = stream;
        std::size_t frames = 0;
        while (!rest.empty()) {
            const auto room = reader.prepare(step);
            REQUIRE(room.size() >= step);
            const std::size_t n = std::min(step - step / 3, rest.size());
            std::memcpy(room.data(), rest.data(), n);
            reader.commit(n);
            rest = rest.subspan(n);
            while (const auto frame = reader.next()) {
                ++frames;
                if (frame->type == FrameType::data) {
                    REQUIRE(text(frame->payload) == long_text);
                }
            }
            CHECK(reader.buffered() <= kHeaderSize + kMaxPayload);
        }
        CHECK(frames == 10);
    }
}

TEST_CASE("views stay valid over several frames of one feed") {
    Bytes stream = framed(1, FrameType::data, 1, "first");
    const Bytes second = framed(2, FrameType::data, 1, "second");
    stream.insert(stream.end(), second.begin(), second.end());
    FrameReader reader;
    reader.feed(stream);
    const auto a = reader.next();
    const auto b = reader.next();
    REQUIRE(a);
    REQUIRE(b);
    CHECK(text(a->payload) == "first");
    CHECK(text(b->payload) == "second");
}

TEST_CASE("violations are final") {
    const auto broken_by = [](Bytes bytes) {
        FrameReader reader;
        reader.feed(bytes);
        while (reader.next()) {
        }
        const auto violation = reader.violation();
        reader.feed(framed(0, FrameType::ping, 0, "x"));
        CHECK_FALSE((violation != FrameReader::Violation::none && reader.next()));
        CHECK(reader.violation() == violation);
        CHECK((violation == FrameReader::Violation::none || reader.buffered() == 0));
        return violation;
    };
    Bytes longest = framed(1, FrameType::data, 0, std::string(kMaxPayload, 'x'));
    CHECK(broken_by(longest) == FrameReader::Violation::none);
    longest[6] = std::byte{1}; // 64 KiB becomes more
    longest[4] = std::byte{1};
    CHECK(broken_by(longest) == FrameReader::Violation::oversized);
    for (const int type : {0x00, 0x0a, 0x0f, 0x1b, 0x80, 0xff}) {
        Bytes bytes = framed(1, FrameType::data, 0, "x");
        bytes[8] = static_cast<std::byte>(type);
        CHECK(broken_by(bytes) == FrameReader::Violation::unknown_type);
    }
    for (const std::size_t at : {10U, 11U}) {
        Bytes bytes = framed(1, FrameType::data, 0, "x");
        bytes[at] = std::byte{1};
        CHECK(broken_by(bytes) == FrameReader::Violation::bad_header);
    }
    for (const auto violation :
         {FrameReader::Violation::none, FrameReader::Violation::unknown_type,
          FrameReader::Violation::oversized, FrameReader::Violation::bad_header}) {
        CHECK_FALSE(to_string(violation).empty());
    }
}

TEST_CASE("a violation shows in the header, before its payload has come") {
    Bytes bytes = framed(1, FrameType::data, 0, "");
    bytes[7] = std::byte{0xff};
    FrameReader reader;
    reader.feed(View(bytes).first(kHeaderSize - 1));
    CHECK_FALSE(reader.next());
    CHECK(reader.violation() == FrameReader::Violation::none);
    reader.feed(View(bytes).subspan(kHeaderSize - 1));
    CHECK_FALSE(reader.next());
    CHECK(reader.violation() == FrameReader::Violation::oversized);
}

TEST_CASE("credit frames") {
    Bytes bytes;
    append_credit(bytes, 9, Stream::err, 0x01020304);
    FrameReader reader;
    reader.feed(bytes);
    const auto frame = reader.next();
    REQUIRE(frame);
    CHECK(frame->type == FrameType::credit);
    CHECK(frame->channel == 9);
    CHECK(parse_stream(frame->flag) == Stream::err);
    CHECK(parse_credit(frame->payload) == 0x01020304U);
    CHECK_FALSE(parse_credit(view("")));
    CHECK_FALSE(parse_credit(view("abc")));
    CHECK_FALSE(parse_credit(view("abcde")));
    CHECK_FALSE(parse_credit(View(bytes).first(0)));
    CHECK_FALSE(parse_credit(view(std::string_view("\0\0\0\0", 4))));
    CHECK(parse_stream(0) == Stream::in);
    CHECK(parse_stream(1) == Stream::out);
    CHECK_FALSE(parse_stream(3));
    CHECK_FALSE(parse_stream(255));
}

TEST_CASE("credit accounting") {
    CreditAccount account;
    CHECK(account.available() == 0);
    CHECK_FALSE(account.use(1));
    CHECK(account.use(0));
    CHECK(account.grant(kWindow));
    CHECK_FALSE(account.grant(1));
    CHECK_FALSE(account.grant(UINT32_MAX));
    CHECK(account.available() == kWindow);
    CHECK(account.use(kWindow - 1));
    CHECK_FALSE(account.use(2));
    CHECK_FALSE(account.use(SIZE_MAX));
    CHECK(account.available() == 1);
    CHECK(account.grant(kWindow - 1));
    CHECK_FALSE(account.grant(1));
}

TEST_CASE("messages make the round trip") {
    const auto hello = decode<Hello>(encode(Hello{.oldest_version = 3,
                                                  .version = UINT64_MAX,
                                                  .agent_version = "1.2",
                                                  .kernel_release = "6.1",
                                                  .agent_start_ns = 5,
                                                  .now_ns = 6}));
    REQUIRE(hello);
    CHECK(hello->oldest_version == 3);
    CHECK(hello->version == UINT64_MAX);
    CHECK(hello->agent_version == "1.2");
    CHECK(hello->kernel_release == "6.1");
    CHECK(hello->agent_start_ns == 5);
    CHECK(hello->now_ns == 6);

    const std::string random("\0\xff\x01", 3);
    const auto setup = decode<Setup>(encode(Setup{.version = 2,
                                                  .root_device = "vda",
                                                  .realtime_ns = 77,
                                                  .random = random,
                                                  .hostname = "h",
                                                  .machine_id = "m",
                                                  .env = {"A=1", "", "B=2"}}));
    REQUIRE(setup);
    CHECK(setup->version == 2);
    CHECK(setup->root_device == "vda");
    CHECK(setup->realtime_ns == 77);
    CHECK(setup->random == random);
    CHECK(setup->hostname == "h");
    CHECK(setup->machine_id == "m");
    CHECK(setup->env == std::vector<std::string>{"A=1", "", "B=2"});

    const auto ready = decode<Ready>(encode(Ready{1, 2, 3}));
    REQUIRE(ready);
    CHECK(ready->mount_ns == 1);
    CHECK(ready->identity_ns == 2);
    CHECK(ready->root_bytes == 3);

    const auto exec = decode<ExecRequest>(encode(ExecRequest{
        .argv = {"a b", "", "$x\n"}, .env = {"E=f"}, .cwd = "/c", .user = "u:g", .timeout_ms = 9}));
    REQUIRE(exec);
    CHECK(exec->argv == std::vector<std::string>{"a b", "", "$x\n"});
    CHECK(exec->env == std::vector<std::string>{"E=f"});
    CHECK(exec->cwd == "/c");
    CHECK(exec->user == "u:g");
    CHECK(exec->timeout_ms == 9);

    CHECK(decode<Opened>(encode(Opened{4})).value().pid == 4);

    for (const auto kind :
         {Failure::Kind::other, Failure::Kind::not_executable, Failure::Kind::not_found,
          Failure::Kind::unreachable, Failure::Kind::violation, Failure::Kind::limit}) {
        const auto failure = decode<Failure>(encode(Failure{kind, 13, "why"}));
        REQUIRE(failure);
        CHECK(failure->kind == kind);
        CHECK(failure->errnum == 13);
        CHECK(failure->message == "why");
    }
    for (const auto kind : {Exit::Kind::exited, Exit::Kind::signaled, Exit::Kind::timeout}) {
        const auto exit = decode<Exit>(encode(Exit{kind, 1, 2, 3}));
        REQUIRE(exit);
        CHECK(exit->kind == kind);
        CHECK(exit->value == 1);
        CHECK(exit->cpu_us == 2);
        CHECK(exit->peak_bytes == 3);
    }
}

TEST_CASE("an empty message is one of defaults") {
    CHECK(decode<Setup>({}).value().version == kProtocolVersion);
    CHECK(decode<ExecRequest>({}).value().argv.empty());
    CHECK(decode<Exit>({}).value().kind == Exit::Kind::exited);
}

TEST_CASE("unknown tags are skipped, known ones of wrong size are not") {
    Bytes bytes = encode(Opened{4});
    const std::byte unknown[] = {std::byte{200}, std::byte{2}, std::byte{0}, std::byte{0},
                                 std::byte{0},   std::byte{1}, std::byte{2}};
    bytes.insert(bytes.begin(), std::begin(unknown), std::end(unknown));
    CHECK(decode<Opened>(bytes).value().pid == 4);
    const std::byte zero_tag[] = {std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0},
                                  std::byte{0}};
    CHECK(decode<Opened>(zero_tag).value().pid == 0);

    for (const std::uint8_t size : {0, 1, 4, 7, 9, 255}) {
        Bytes wrong{std::byte{1}, std::byte{size}, std::byte{0}, std::byte{0}, std::byte{0}};
        wrong.resize(5 + size);
        CHECK_FALSE(decode<Opened>(wrong));
        CHECK_FALSE(decode<Failure>(wrong));
        CHECK_FALSE(decode<Exit>(wrong));
    }
}

TEST_CASE("an enumeration beyond its values is malformed") {
    Bytes failure = encode(Failure{Failure::Kind::limit, 0, ""});
    failure[5] = std::byte{6};
    CHECK_FALSE(decode<Failure>(failure));
    Bytes exit = encode(Exit{Exit::Kind::timeout, 0, 0, 0});
    exit[5] = std::byte{3};
    CHECK_FALSE(decode<Exit>(exit));
    exit[5] = std::byte{2};
    exit[12] = std::byte{1}; // 2 + 2^56
    CHECK_FALSE(decode<Exit>(exit));
}

TEST_CASE("every cut of a message is either malformed or a shorter message") {
    const Bytes whole = encode(ExecRequest{.argv = {"abc", "de"}, .env = {"F=g"}, .cwd = "/h"});
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const auto cut = decode<ExecRequest>(View(whole).first(size));
        if (cut) {
            CHECK(cut->argv.size() <= 2);
        }
    }
}

TEST_CASE("random bytes break nothing") {
    std::mt19937 random(1); // the same every time
    for (int round = 0; round < 3000; ++round) {
        Bytes bytes(random() % 300);
        for (auto& b : bytes) {
            // Small values most of the time: they are tags, lengths and types.
            b = static_cast<std::byte>(random() % 4 != 0 ? random() % 10 : random());
        }
        static_cast<void>(decode<Hello>(bytes));
        static_cast<void>(decode<Setup>(bytes));
        static_cast<void>(decode<Ready>(bytes));
        static_cast<void>(decode<ExecRequest>(bytes));
        static_cast<void>(decode<Opened>(bytes));
        static_cast<void>(decode<Failure>(bytes));
        static_cast<void>(decode<Exit>(bytes));
        FrameReader reader;
        View rest = bytes;
        while (!rest.empty()) {
            const std::size_t n = std::min<std::size_t>(1 + random() % 40, rest.size());
            reader.feed(rest.first(n));
            rest = rest.subspan(n);
            drain(reader);
        }
    }
}
