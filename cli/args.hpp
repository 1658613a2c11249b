#pragma once
// Arguments of one verb. CLI11 and its exceptions stay in args.cpp.

#include "util/result.hpp"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace wd::cli {

class Args {
public:
    // usage: what follows "wd VERB" on the usage line. about: one line. details: more lines for
    // --help, at most 80 columns each.
    Args(std::string verb, std::string usage, std::string about, std::string details = {});
    ~Args();
    Args(const Args&) = delete;
    Args& operator=(const Args&) = delete;

    // `names` as CLI11 takes them: "-q,--quiet". The targets must outlive parse().
    void flag(const std::string& names, bool& target, std::string help);
    void option(const std::string& names, std::optional<std::string>& target, std::string metavar,
                std::string help);
    void list(const std::string& names, std::vector<std::string>& target, std::string metavar,
              std::string help);
    void positional(std::string name, std::string& target);
    void positionals(std::string name, std::vector<std::string>& target, bool required);

    // From the first word after the verb's second positional (or after `--`) on, everything is the
    // guest's. Only for a verb with one positional.
    void guest_command(std::vector<std::string>& argv);

    // True: --help was asked for and printed. Error: invalid_argument, one line, with a suggestion
    // for a mistyped option.
    Result<bool> parse(std::vector<std::string> words);

    std::string help() const;

private:
    std::size_t end_of_own(const std::vector<std::string>& words) const;
    void split_empty_values(std::vector<std::string>& words) const;
    std::string unknown_option(const std::string& word) const;

    std::string verb_;
    std::string usage_;
    std::string about_;
    std::string details_;
    std::unique_ptr<CLI::App> app_;
    std::vector<std::string>* guest_argv_ = nullptr;
};

// The candidate that `word` was probably meant to be; empty where none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "90", "1.5", "90s", "2m", "1h", "500ms"; a bare number is seconds. Zero is not a duration.
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

// K=V of --label; the last one of a key wins.
Result<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words);

// NAME=VALUE as it stands; NAME alone takes the value from this process's environment. `files` are
// read first: lines NAME=VALUE, blank ones and those starting with '#' skipped, "-" is stdin. A
// value never gets into a message.
Result<std::vector<std::string>> parse_env(const std::vector<std::string>& words,
                                           const std::vector<std::string>& files);

Result<std::uint32_t> parse_count(std::string_view text, std::string_view what);

} // namespace wd::cli
