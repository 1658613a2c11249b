#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/report.hpp"
#include "cli/verbs.hpp"

#include <cstdlib>
#include <fstream>

#include <doctest/doctest.h>
#include <unistd.h>

using namespace wd;
using namespace wd::cli;

namespace {

struct ExecArgs {
    std::string id;
    std::vector<std::string> argv;
    std::optional<std::string> cwd;
    std::vector<std::string> env;
    bool json = false;
    Result<bool> parsed = false;

    explicit ExecArgs(Words words) {
        Args args("exec", "ID COMMAND...", "about");
        args.positional("ID", id);
        args.guest_command(argv);
        args.option("--cwd,-C", cwd, "DIR", "help");
        args.list("--env", env, "NAME=VALUE", "help");
        args.flag("--json", json, "help");
        parsed = args.parse(std::move(words));
    }
};

} // namespace

TEST_CASE("exec: everything from the command on is the guest's") {
    const Words guest{"a b", "", "$HOME", "--json", "--", "-x", "x\ny", "[1,2]", "--cwd"};
    for (const bool dashes : {true, false}) {
        Words words{"box"};
        if (dashes) {
            words.emplace_back("--");
        }
        words.emplace_back("printf");
        words.insert(words.end(), guest.begin(), guest.end());
        const ExecArgs exec(words);
        REQUIRE(exec.parsed.has_value());
        CHECK(exec.id == "box");
        CHECK_FALSE(exec.json);
        Words expected{"printf"};
        expected.insert(expected.end(), guest.begin(), guest.end());
        CHECK(exec.argv == expected);
    }
}

TEST_CASE("exec: own options come before the command, before or after the id") {
    const ExecArgs exec({"--cwd", "box", "--env", "A=b c", "-C/x", "id", "--json", "--env=B=[]",
                         "ls", "--json", "-l"});
    REQUIRE(exec.parsed.has_value());
    CHECK(exec.id == "id");
    CHECK(exec.cwd == "/x");
    CHECK(exec.env == Words{"A=b c", "B=[]"});
    CHECK(exec.json);
    CHECK(exec.argv == Words{"ls", "--json", "-l"});
}

TEST_CASE("exec: after -- a command may begin with a dash; a lone - is a command") {
    CHECK(ExecArgs({"id", "--", "-c"}).argv == Words{"-c"});
    CHECK(ExecArgs({"id", "-", "x"}).argv == Words{"-", "x"});
    CHECK(ExecArgs({"id", "--"}).argv.empty());
    CHECK(ExecArgs({"--", "id", "ls"}).argv == Words{"ls"});
    CHECK(ExecArgs({"--", "id", "ls"}).id == "id");
}

TEST_CASE("exec: a mistyped option is named with its neighbour") {
    const ExecArgs exec({"--jsno", "id", "ls"});
    REQUIRE_FALSE(exec.parsed.has_value());
    CHECK(exec.parsed.error().message ==
          "unknown option \"--jsno\", did you mean --json?; see wd exec --help");
    CHECK(exec.parsed.error().code == ErrorCode::invalid_argument);
}

TEST_CASE("args: errors are one line with the usage") {
    const ExecArgs none(Words{});
    REQUIRE_FALSE(none.parsed.has_value());
    CHECK(none.parsed.error().message.find('\n') == std::string::npos);
    CHECK(none.parsed.error().message.find("usage: wd exec ID COMMAND...") != std::string::npos);
    const ExecArgs valueless({"--cwd"});
    CHECK_FALSE(valueless.parsed.has_value());
    const ExecArgs empty({"--cwd=", "id", "ls"});
    CHECK(empty.cwd == "");
    CHECK(empty.id == "id");
    const ExecArgs empty_word({"--cwd", "", "", "ls"});
    CHECK(empty_word.cwd == "");
    CHECK(empty_word.id.empty());
    CHECK(empty_word.argv == Words{"ls"});
}

TEST_CASE("args: after -- a positional may be anything") {
    for (const std::string word : {"", "-x", "--", "--json", "../a"}) {
        Args args("v", "ID", "about");
        std::string id = "unset";
        args.positional("ID", id);
        CHECK(args.parse({"--", word}).has_value());
        CHECK(id == word);
    }
}

TEST_CASE("args: every verb's help fits 80 columns, goes to stdout and exits 0") {
    // The text itself is looked at by tests/style/cli_docs, through the program.
    Args args("v", "ID", "about");
    std::string id;
    args.positional("ID", id);
    bool flag = false;
    args.flag("--a-very-long-option-name-indeed", flag,
              "a help text that is long enough to need to be wrapped on a line of eighty columns");
    const std::string help = args.help();
    std::size_t at = 0;
    while (at < help.size()) {
        const std::size_t end = help.find('\n', at);
        CHECK(end - at <= 80);
        at = end + 1;
    }
}

TEST_CASE("nearest: two typing errors, and not just anything") {
    const std::vector<std::string> verbs{"create", "exec", "ls", "rm", "inspect"};
    CHECK(nearest("crate", verbs) == "create");
    CHECK(nearest("exce", verbs) == "exec");
    CHECK(nearest("lss", verbs) == "ls");
    CHECK(nearest("frobnicate", verbs).empty());
    CHECK(nearest(std::string(5000, 'a'), verbs).empty());
}

TEST_CASE("durations") {
    using std::chrono::milliseconds;
    CHECK(parse_duration("90") == milliseconds(90000));
    CHECK(parse_duration("1.5") == milliseconds(1500));
    CHECK(parse_duration("90s") == milliseconds(90000));
    CHECK(parse_duration("2m") == milliseconds(120000));
    CHECK(parse_duration("1h") == milliseconds(3600000));
    CHECK(parse_duration("250ms") == milliseconds(250));
    for (const char* bad : {"", "s", "0", "-1", "1x", "1 s", "nan", "inf", "1e3", "0.0001", "1ss",
                            "99999999999999999999"}) {
        CAPTURE(bad);
        CHECK_FALSE(parse_duration(bad).has_value());
    }
}

TEST_CASE("labels and counts") {
    const auto labels = parse_labels({"a=b", "c=d=e", "x="});
    REQUIRE(labels.has_value());
    CHECK(labels->at("c") == "d=e");
    CHECK(labels->at("x").empty());
    CHECK_FALSE(parse_labels({"a"}).has_value());
    CHECK_FALSE(parse_labels({"=b"}).has_value());
    CHECK(parse_count("4", "x") == 4u);
    for (const char* bad : {"", "-1", "1.5", "4x", "99999999999"}) {
        CHECK_FALSE(parse_count(bad, "--cpus").has_value());
    }
}

TEST_CASE("environment: words, files, and passing on; a value never shows in a message") {
    ::setenv("WD_TEST_PASSED_ON", "from here", 1);
    char path[] = "/tmp/wd-env-XXXXXX";
    Fd fd(::mkstemp(path));
    REQUIRE(write_all(fd.get(), "# comment\n\nA=1\nB=two words\n").has_value());
    auto env = parse_env({"C=x=y", "WD_TEST_PASSED_ON"}, {path});
    REQUIRE(env.has_value());
    CHECK(*env == Words{"A=1", "B=two words", "C=x=y", "WD_TEST_PASSED_ON=from here"});
    const auto nameless = parse_env({"A=1", "hunter2"}, {});
    REQUIRE_FALSE(nameless.has_value());
    CHECK(nameless.error().message.find("hunter2") == std::string::npos);
    CHECK(nameless.error().message.find("number 2") != std::string::npos);
    CHECK_FALSE(parse_env({""}, {}).has_value());
    REQUIRE(write_all(fd.get(), "hunter2 is no assignment\n").has_value());
    env = parse_env({}, {path});
    REQUIRE_FALSE(env.has_value());
    CHECK(env.error().message.find("hunter2") == std::string::npos);
    CHECK(env.error().message.find("line 5") != std::string::npos);
    CHECK_FALSE(parse_env({}, {"/nonexistent"}).has_value());
    CHECK(parse_env({}, {"/dev/null"})->empty());
    ::unlink(path);
}

TEST_CASE("table: columns line up, and text from outside is harmless") {
    Table table({"ID", "NAME", "X"});
    table.add({"sb-1", "é", "1"});
    table.add({"sb-22", "evil\x1b[31m\nname", ""});
    CHECK(table.text() == "ID     NAME               X\n"
                          "sb-1   é                  1\n"
                          "sb-22  evil\\x1b[31m name\n");
}

TEST_CASE("fields: units and nesting for a person") {
    Json object{{"accel", "kvm"},
                {"id", "x"},
                {"memory_bytes", 512u << 20},
                {"created_us", 1000000u},
                {"labels", Json::object({{"k", "v"}})},
                {"env_names", Json::array()},
                {"timings_ms", Json::object({{"ready", 12.34}})}};
    CHECK(fields_text(object) == "id:          x\n"
                                 "accel:       kvm\n"
                                 "memory:      512M\n"
                                 "created:     1970-01-01T00:00:01Z\n"
                                 "labels:      k=v\n"
                                 "env_names:   -\n"
                                 "timings_ms:  ready=12.3\n");
}

TEST_CASE("terminal filter: shows control characters, keeps UTF-8 that comes in pieces") {
    TerminalFilter filter;
    CHECK(filter.feed("a\x1b]0;x\x07\r\n\tb") == "a\\x1b]0;x\\x07\n\tb");
    const std::string coffee = "☕";
    CHECK(filter.feed(coffee.substr(0, 1)) == "");
    CHECK(filter.feed(coffee.substr(1, 1)) == "");
    CHECK(filter.feed(coffee.substr(2) + "!") == coffee + "!");
    CHECK(filter.feed("\xff\xfe"
                      "ok") == "\\xff\\xfeok");
}

TEST_CASE("base64") {
    CHECK(base64("") == "");
    CHECK(base64("f") == "Zg==");
    CHECK(base64("fo") == "Zm8=");
    CHECK(base64("foo") == "Zm9v");
    CHECK(base64(std::string("\0\xff\x10", 3)) == "AP8Q");
}

TEST_CASE("errors as JSON have the stable code") {
    const Json json = error_json(Error{ErrorCode::limit, 0, "too much"});
    CHECK(json.dump() == R"({"error":{"code":"limit","message":"too much"}})");
}

TEST_CASE("sandbox paths need no question for an id") {
    CHECK(path_of_id("sb-abcdefgh23") == "/dev/workdir1/sandbox/sb_2dabcdefgh23");
}

TEST_CASE("boot summary names only parts that took time") {
    const Json report{{"id", "sb-x"},
                      {"boot_path", "cold_boot"},
                      {"accel", "tcg"},
                      {"timings_ms", {{"queue", 0.1}, {"kernel", 700.0}, {"ready", 2900.0}}}};
    CHECK(boot_summary(report) == "sb-x is ready after 2.90 s: cold_boot, tcg (kernel 700 ms)");
    CHECK_FALSE(boot_summary(Json::object()).empty());
}

TEST_CASE("--json is looked for before -- only") {
    CHECK(wants_json({"x", "--json"}));
    CHECK_FALSE(wants_json({"x", "--", "--json"}));
}

TEST_CASE("verbs: the table is complete and without doubles") {
    std::vector<std::string_view> names;
    for (const Verb& verb : verbs()) {
        CHECK((verb.run != nullptr));
        CHECK(std::find(names.begin(), names.end(), verb.name) == names.end());
        names.push_back(verb.name);
    }
}
