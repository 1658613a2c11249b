#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "util/error.hpp"
#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/size.hpp"
#include "util/text.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace wd;

TEST_CASE("the error table is total and its names are unique") {
    std::set<std::string_view> names;
    std::set<std::string_view> dbus;
    std::set<int> statuses;
    for (int i = 0; i < kErrorCodeCount; ++i) {
        const auto code = static_cast<ErrorCode>(i);
        const auto& row = error_code_info(code);
        CHECK(row.code == code);
        CHECK(row.exit_status > 1);
        CHECK(row.errno_value > 0);
        CHECK(error_code_from_dbus(row.dbus_name) == code);
        names.insert(row.name);
        dbus.insert(row.dbus_name);
        statuses.insert(row.exit_status);
    }
    CHECK(names.size() == kErrorCodeCount);
    CHECK(dbus.size() == kErrorCodeCount);
    CHECK(statuses.size() == kErrorCodeCount);
    CHECK(error_code_from_dbus("org.freedesktop.DBus.Error.Failed") == ErrorCode::internal);
}

TEST_CASE("ids are valid, distinct, and map to units and back") {
    std::set<std::string> seen;
    for (int i = 0; i < 1000; ++i) {
        const std::string id = new_sandbox_id();
        CHECK(is_sandbox_id(id));
        CHECK(sandbox_id_of_unit(unit_name(id)) == id);
        seen.insert(id);
    }
    CHECK(seen.size() == 1000);
    for (const char* bad : {"", "sb-", "sb-abcdefghi", "sb-abcdefghijk", "sb-ABCDEFGHIJ",
                            "sb-abcdefgh1j", "xx-abcdefghij", "sb-abcdefghi/"}) {
        CHECK_FALSE(is_sandbox_id(bad));
    }
    CHECK(sandbox_id_of_unit("workdir-../../etc.service").empty());
    CHECK(sandbox_id_of_unit("workdird.service").empty());
    CHECK(new_machine_id().size() == 32);
}

TEST_CASE("names") {
    for (const char* good : {"a", "0", "my-box", "a.b_c", "base"}) {
        CHECK(check_name(good, "name"));
    }
    const std::string longest(kMaxNameLength, 'a');
    CHECK(check_name(longest, "name"));
    const std::string wild[] = {"",
                                "-a",
                                ".a",
                                "A",
                                "a b",
                                "a/b",
                                "a\n",
                                longest + "a",
                                std::string(300, 'x'),
                                new_sandbox_id(),
                                "ü"};
    for (const auto& bad : wild) {
        CHECK_FALSE(check_name(bad, "name"));
    }
    const auto message = check_name(std::string(300, 'x'), "sandbox name").error().message;
    CHECK(message.find("300 characters") != std::string::npos);
    CHECK(message.find("63") != std::string::npos);
    CHECK(message.size() < 250);
}

TEST_CASE("labels and environment") {
    CHECK(check_label("app", "web ☕"));
    CHECK(check_label("a/b", ""));
    CHECK_FALSE(check_label("", "x"));
    CHECK_FALSE(check_label("A", "x"));
    CHECK_FALSE(check_label("a", "x\n"));
    CHECK_FALSE(check_label("a", std::string(256, 'x')));
    CHECK_FALSE(check_label("a", "\xff"));
    CHECK(check_env("A=b"));
    CHECK(check_env("A="));
    CHECK(check_env("A=b=c"));
    CHECK_FALSE(check_env("A"));
    CHECK_FALSE(check_env("=b"));
    CHECK_FALSE(check_env(std::string("A=\0", 3)));
    CHECK(check_env("hunter2").error().message.find("hunter2") == std::string::npos);
}

TEST_CASE("sizes") {
    CHECK(parse_size("0").value() == 0);
    CHECK(parse_size("512M").value() == 512 * kMiB);
    CHECK(parse_size("8G").value() == 8 * kGiB);
    CHECK(parse_size("8GiB").value() == 8 * kGiB);
    CHECK(parse_size("8gB").value() == 8 * kGiB);
    CHECK(parse_size("1.5G").value() == 1536 * kMiB);
    CHECK(parse_size("4096").value() == 4096);
    for (const char* bad :
         {"", "G", "-1G", "1X", "1GG", "nan", "inf", "1e5", "999999999T", "0x10", "1 G", "1BB"}) {
        CHECK_FALSE(parse_size(bad));
    }
    CHECK(format_size(512 * kMiB) == "512M");
    CHECK(format_size(1536 * kMiB) == "1.5G");
    CHECK(format_size(17) == "17B");
    CHECK(format_size(0) == "0B");
}

TEST_CASE("text from outside is cut and without control characters") {
    CHECK(quote("a\x1b[31m\n") == "\"a\\x1b[31m\\x0a\"");
    CHECK(quote("☕") == "\"☕\"");
    CHECK(quote("\xff\xfe") == "\"\\xff\\xfe\"");
    CHECK(quote("\xc2\x9b") == "\"\\xc2\\x9b\""); // U+009B, a C1 control
    CHECK(quote(std::string(100, 'x'), 10) == "\"xxxxxxxxxx…\"");
    CHECK(printable("a\nb\r\t", 100) == "a\nb\\x0d\t");
    CHECK(is_valid_utf8("☕é"));
    CHECK_FALSE(is_valid_utf8("\xed\xa0\x80")); // a surrogate
    CHECK_FALSE(is_valid_utf8("\xc0\x80"));     // overlong
    CHECK_FALSE(is_valid_utf8("\xf5\x80\x80\x80"));
    CHECK_FALSE(is_valid_utf8("\xe2\x98"));
}

TEST_CASE("files are written whole or not at all") {
    char folder[] = "/tmp/wd-util-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    const std::filesystem::path path = std::filesystem::path(folder) / "file";
    REQUIRE(write_file_atomically(path, "one"));
    REQUIRE(write_file_atomically(path, "two"));
    CHECK(read_file(path, 100).value() == "two");
    CHECK(read_file(path, 2).error().code == ErrorCode::limit);
    CHECK(read_file(path.string() + "x", 2).error().code == ErrorCode::not_found);
    CHECK_FALSE(write_file_atomically(std::filesystem::path(folder) / "no" / "file", "x"));
    CHECK(disk_space(folder).value().total_bytes > 0);
    CHECK(remove_tree(folder));
    CHECK(remove_tree(folder));
    CHECK(::access(folder, F_OK) != 0);
}

TEST_CASE("descriptors have one owner and close on exec") {
    auto pair = socket_pair(SOCK_STREAM);
    REQUIRE(pair);
    CHECK((::fcntl(pair->first.get(), F_GETFD) & FD_CLOEXEC) != 0);
    Fd moved = std::move(pair->first);
    CHECK_FALSE(pair->first);
    const int number = moved.get();
    const auto copy = moved.duplicate();
    REQUIRE(copy);
    CHECK(copy->get() >= 3);
    moved.reset();
    CHECK(::fcntl(number, F_GETFD) < 0);
}
