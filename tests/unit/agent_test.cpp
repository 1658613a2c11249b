#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "agent/environment.hpp"
#include "agent/files.hpp"
#include "agent/identity.hpp"
#include "agent/outcome.hpp"
#include "agent/user_db.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <sys/stat.h>
#include <unistd.h>

using namespace wd::agent;

namespace {

constexpr std::string_view kPasswd = "root:x:0:0:root:/root:/bin/bash\n"
                                     "# a comment\n"
                                     "\n"
                                     "broken:x:1\n"
                                     "letters:x:one:1::/:/bin/sh\n"
                                     "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
                                     "bare:x:7:8:::\n"
                                     "1000:x:5:6:named by a number:/n:/bin/n\n"
                                     "worker:x:1000:1001:Work, Er:/home/worker:/bin/zsh";
constexpr std::string_view kGroup = "root:x:0:\n"
                                    "broken:x\n"
                                    "tty:x:5:\n"
                                    "docker:x:998:a,worker,b\n"
                                    "worker:x:1001:\n"
                                    "own:x:1001:worker\n"
                                    "workers:x:997:workerx,xworker\n"
                                    "last:x:996:b,worker";

User user(std::string_view wanted) {
    return find_user(wanted, kPasswd, kGroup).value();
}

} // namespace

TEST_CASE("a user by name") {
    const User root = user("");
    CHECK(root.uid == 0);
    CHECK(root.name == "root");
    CHECK(root.home == "/root");
    CHECK(root.shell == "/bin/bash");
    CHECK(root.groups == std::vector<gid_t>{0});
    const User worker = user("worker");
    CHECK(worker.uid == 1000);
    CHECK(worker.gid == 1001);
    CHECK(worker.home == "/home/worker");
    CHECK(worker.shell == "/bin/zsh");
    CHECK(worker.groups == std::vector<gid_t>{1001, 998, 996});
    const User bare = user("bare");
    CHECK(bare.home == "/");
    CHECK(bare.shell == "/bin/sh");
}

TEST_CASE("a user by number") {
    CHECK(user("1").name == "daemon");
    CHECK(user("1000").uid == 5); // a name of digits comes first
    CHECK(user("0").home == "/root");
    const User unknown = user("4242");
    CHECK(unknown.uid == 4242);
    CHECK(unknown.gid == 0);
    CHECK(unknown.name.empty());
    CHECK(unknown.home == "/");
    CHECK(unknown.groups == std::vector<gid_t>{0});
}

TEST_CASE("a user with a group") {
    const User a = user("worker:tty");
    CHECK(a.uid == 1000);
    CHECK(a.gid == 5);
    CHECK(a.groups == std::vector<gid_t>{5});
    CHECK(user("4242:4343").gid == 4343);
    CHECK(user("daemon:docker").gid == 998);
}

TEST_CASE("users that do not exist") {
    for (const char* bad :
         {"stranger", "broken", "letters", "-1", "4294967295", "99999999999", "1 ", "0x0",
          "root:no", "root:", ":", ":0", "root:0:0", "worker:-1", "root\n", "a comment"}) {
        CAPTURE(bad);
        CHECK_FALSE(find_user(bad, kPasswd, kGroup));
    }
    const auto message = find_user("stranger", kPasswd, kGroup).error().message;
    CHECK(message.find("\"stranger\"") != std::string::npos);
}

TEST_CASE("a root file system without users has a root") {
    CHECK(find_user("", "", "").value().home == "/root");
    CHECK(find_user("root", "", "").value().uid == 0);
    CHECK(find_user("7", "", "").value().uid == 7);
    CHECK_FALSE(find_user("daemon", "", ""));
}

TEST_CASE("environment: defaults, then the sandbox's, then the request's") {
    const std::vector<std::string> setup = {"A=setup", "B=setup", "HOME=/setup"};
    const std::vector<std::string> request = {"B=request", "C=x=y", "LANG=", "B=again"};
    const auto env = merge_environment(user("worker"), setup, request);
    const auto value = [&](std::string_view name) {
        const std::string* const entry = find_variable(env, name);
        return entry ? *entry : "";
    };
    CHECK(value("A") == "A=setup");
    CHECK(value("B") == "B=again");
    CHECK(value("C") == "C=x=y");
    CHECK(value("HOME") == "HOME=/setup");
    CHECK(value("LANG") == "LANG=");
    CHECK(value("USER") == "USER=worker");
    CHECK(value("LOGNAME") == "LOGNAME=worker");
    CHECK(value("SHELL") == "SHELL=/bin/zsh");
    CHECK(value("PATH") == "PATH=" + std::string(kDefaultPath));
    CHECK(value("PAT").empty());
    CHECK(env.size() == 9);
    const auto unnamed = merge_environment(user("4242"), {}, {});
    CHECK(find_variable(unnamed, "USER") == nullptr);
    CHECK(*find_variable(unnamed, "HOME") == "HOME=/");
}

TEST_CASE("a hundred thousand variables take no time") {
    std::vector<std::string> request;
    for (int i = 0; i < 100000; ++i) {
        request.push_back("V" + std::to_string(i % 50000) + "=" + std::to_string(i));
    }
    const auto env = merge_environment(user(""), {}, request);
    CHECK(env.size() == 50006);
    CHECK(*find_variable(env, "V0") == "V0=50000");
}

TEST_CASE("where a program is looked for") {
    using List = std::vector<std::string>;
    CHECK(program_candidates("ls", "/a:/b") == List{"/a/ls", "/b/ls"});
    CHECK(program_candidates("ls", "/a") == List{"/a/ls"});
    CHECK(program_candidates("ls", "/a:") == List{"/a/ls", "./ls"});
    CHECK(program_candidates("ls", "") == List{"./ls"});
    CHECK(program_candidates("ls", ":/b") == List{"./ls", "/b/ls"});
    CHECK(program_candidates("./ls", "/a") == List{"./ls"});
    CHECK(program_candidates("/bin/ls", "/a") == List{"/bin/ls"});
    CHECK(program_candidates("", "/a").empty());
}

TEST_CASE("requests that cannot be served") {
    using wd::wire::ExecRequest;
    CHECK(check_request({.argv = {"a"}}));
    CHECK(check_request({.argv = {""}, .env = {"A="}}));
    CHECK(check_request({.argv = {std::string(wd::wire::kMaxArgument, 'x')}}));
    const std::string secret(wd::wire::kMaxArgument + 1, 's');
    const ExecRequest bad[] = {
        {},
        {.argv = {"a", secret}},
        {.argv = {std::string("a\0b", 3)}},
        {.argv = {"a"}, .env = {"novalue"}},
        {.argv = {"a"}, .env = {"=x"}},
        {.argv = {"a"}, .env = {std::string("A=\0", 3)}},
        {.argv = {"a"}, .env = {"A=" + secret}},
        {.argv = {"a"}, .cwd = std::string("/\0", 2)},
        {.argv = {"a"}, .user = std::string("r\0", 2)},
    };
    for (const ExecRequest& request : bad) {
        const auto checked = check_request(request);
        REQUIRE_FALSE(checked);
        CHECK(checked.error().message.size() < 200);
        CHECK(checked.error().message.find("sss") == std::string::npos);
        CHECK(checked.error().message.find("novalue") == std::string::npos);
    }
}

TEST_CASE("the hosts file") {
    CHECK(hosts_with("", "box") == "127.0.1.1\tbox\n");
    CHECK(hosts_with("127.0.0.1 localhost", "box") == "127.0.0.1 localhost\n127.0.1.1\tbox\n");
    CHECK(hosts_with("127.0.1.1 old\n# x\n127.0.1.1\told2\n127.0.1.10 other\n", "box") ==
          "127.0.1.1\tbox\n# x\n127.0.1.10 other\n");
    const std::string once = hosts_with("127.0.0.1 localhost\n\n::1 localhost\n", "box");
    CHECK(hosts_with(once, "box") == once);
}

TEST_CASE("names") {
    for (const char* good : {"a", "sb-abcdefghij", "A.b_c", "0"}) {
        CHECK(is_hostname(good));
    }
    for (const char* bad : {"", "-a", ".a", "a b", "a\n", "ü", "a/b"}) {
        CHECK_FALSE(is_hostname(bad));
    }
    CHECK(is_hostname(std::string(64, 'a')));
    CHECK_FALSE(is_hostname(std::string(65, 'a')));
    CHECK(is_machine_id("0123456789abcdef0123456789abcdef"));
    CHECK_FALSE(is_machine_id("0123456789abcdef0123456789abcde"));
    CHECK_FALSE(is_machine_id("0123456789ABCDEF0123456789ABCDEF"));
    CHECK_FALSE(is_machine_id("0123456789abcdef0123456789abcdef\n"));
}

TEST_CASE("text from outside is quoted and cut") {
    CHECK(quote("a") == "\"a\"");
    CHECK(quote("a\x1b[31m\n\"\\") == "\"a\\x1b[31m\\x0a\\x22\\x5c\"");
    CHECK(quote("☕") == "\"☕\"");
    CHECK(quote(std::string(80, 'x')) == "\"" + std::string(80, 'x') + "\"");
    CHECK(quote(std::string(81, 'x')) == "\"" + std::string(80, 'x') + "...\"");
    CHECK(quote(std::string(79, 'x') + "☕☕") == "\"" + std::string(79, 'x') + "...\"");
    CHECK(errno_text(ENOENT) == "No such file or directory");
    CHECK(errno_text(99999) == "errno 99999");
    CHECK(failure_errno(EACCES, "open x").value().message == "open x: Permission denied");
}

TEST_CASE("mount points are unescaped") {
    CHECK(unescape_mount("/a") == "/a");
    CHECK(unescape_mount("/a\\040b\\011\\134") == "/a b\t\\");
    CHECK(unescape_mount("/a\\04") == "/a\\04");
    CHECK(unescape_mount("\\9990") == "\\9990");
    CHECK(unescape_mount("\\") == "\\");
}

TEST_CASE("files are replaced whole, and only when they differ") {
    char folder[] = "/tmp/wd-agent-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    const std::string path = std::string(folder) + "/file";
    REQUIRE(update_file(path.c_str(), "one\n", 0644));
    struct stat before {};
    REQUIRE(::stat(path.c_str(), &before) == 0);
    CHECK((before.st_mode & 0777) == 0644);
    REQUIRE(update_file(path.c_str(), "one\n", 0644));
    struct stat same {};
    REQUIRE(::stat(path.c_str(), &same) == 0);
    CHECK(same.st_ino == before.st_ino);
    REQUIRE(update_file(path.c_str(), "two\n", 0444));
    CHECK(read_small_file(path.c_str(), 100).value() == "two\n");
    CHECK(read_small_file(path.c_str(), 3).error().errnum == EFBIG);
    CHECK(read_small_file(folder, 3).error().errnum == EINVAL);
    CHECK(read_small_file((path + "x").c_str(), 3).error().errnum == ENOENT);
    // A fifo would block whoever opens it.
    const std::string fifo = std::string(folder) + "/fifo";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    CHECK_FALSE(read_small_file(fifo.c_str(), 100));
    CHECK_FALSE(update_file((std::string(folder) + "/no/file").c_str(), "x", 0644));
    CHECK(::unlink(path.c_str()) + ::unlink(fifo.c_str()) + ::rmdir(folder) == 0);
}
