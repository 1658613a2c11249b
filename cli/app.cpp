#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/verbs.hpp"

#include "util/text.hpp"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

namespace wd::cli {
namespace {

Result<int> run_help(const Words& words);

std::string top_help() {
    std::string out = "Usage: wd VERB [ARGUMENTS]\n\n"
                      "Sandboxes for AI agents: real Linux machines that come and go.\n\nVerbs:\n";
    for (const Verb& verb : verbs()) {
        out += fmt::format("  {:<10}{}\n", verb.name, verb.summary);
    }
    out += "\nOptions:\n"
           "  -h, --help     print this help\n"
           "  --version      print the versions of wd and workdird\n"
           "\n"
           "wd VERB --help tells more of a verb. A first tour:\n"
           "  id=$(wd create)\n"
           "  wd exec $id -- sh -c 'echo hello; uname -a'\n"
           "  wd rm $id\n"
           "The manual: man wd\n";
    return out;
}

Result<int> unknown_verb(const std::string& word) {
    std::vector<std::string> names;
    for (const Verb& verb : verbs()) {
        names.emplace_back(verb.name);
    }
    const std::string near = nearest(word, names);
    return fail(ErrorCode::invalid_argument,
                fmt::format("unknown {} {}{}; see wd --help",
                            word.starts_with("-") ? "option" : "verb", quote(word),
                            near.empty() ? "" : fmt::format(", did you mean {}?", near)));
}

const Verb* find(const std::string& name) {
    const auto found = std::find_if(verbs().begin(), verbs().end(),
                                    [&](const Verb& verb) { return verb.name == name; });
    return found == verbs().end() ? nullptr : &*found;
}

Result<int> run_help(const Words& words) {
    if (words.empty() || words[0] == "-h" || words[0] == "--help") {
        return print(top_help());
    }
    const Verb* verb = find(words[0]);
    if (verb == nullptr) {
        return unknown_verb(words[0]);
    }
    Words asked(words.begin() + 1, words.end());
    asked.emplace_back("--help");
    return verb->run(asked);
}

Result<int> dispatch(const Words& words) {
    if (words.empty()) {
        return fail(ErrorCode::invalid_argument,
                    "which verb? wd --help lists them; wd create makes a sandbox");
    }
    if (words[0] == "-h" || words[0] == "--help") {
        return print(top_help());
    }
    const Words rest(words.begin() + 1, words.end());
    if (words[0] == "--version") {
        return run_version(rest);
    }
    const Verb* verb = find(words[0]);
    return verb != nullptr ? verb->run(rest) : unknown_verb(words[0]);
}

} // namespace

const std::vector<Verb>& verbs() {
    static const std::vector<Verb> all{
        {"create", "make a sandbox and print its id", run_create},
        {"exec", "run a command in a sandbox", run_exec},
        {"ls", "list sandboxes", run_ls},
        {"inspect", "show everything about a sandbox", run_inspect},
        {"stop", "stop sandboxes; their disks stay", run_stop},
        {"standby", "park sandboxes; the next call wakes them", run_standby},
        {"start", "start stopped sandboxes on their disks", run_start},
        {"rm", "remove sandboxes with their disks", run_rm},
        {"logs", "print a sandbox's console log", run_logs},
        {"image", "build, list, inspect and remove images", run_image},
        {"doctor", "check this host and say what to do", run_doctor},
        {"version", "print the versions of wd and workdird", run_version},
        {"help", "print help, also of one verb", run_help},
    };
    return all;
}

bool wants_json(const Words& words) {
    const auto end = std::find(words.begin(), words.end(), "--");
    return std::find(words.begin(), end, "--json") != end;
}

int run(const Words& words) {
    try {
        auto result = dispatch(words);
        return result ? *result : report(result.error(), wants_json(words));
    } catch (const std::exception& error) { // out of memory; everything else is a Result
        return report(Error{ErrorCode::internal, 0, error.what()});
    }
}

} // namespace wd::cli
