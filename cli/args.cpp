#include "cli/args.hpp"

#include "util/fd.hpp"
#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/text.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace wd::cli {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kIndent = 28;
constexpr std::size_t kMaxEnvFile = 1024 * 1024;

// "  NAMES   text", the text wrapped beside the names.
std::string help_line(const std::string& names, const std::string& text) {
    std::string out = "  " + names;
    if (out.size() + 2 > kIndent) {
        out += "\n" + std::string(kIndent, ' ');
    } else {
        out.resize(kIndent, ' ');
    }
    std::size_t column = kIndent;
    std::size_t at = 0;
    while (at < text.size()) {
        std::size_t end = text.find(' ', at);
        end = end == std::string::npos ? text.size() : end;
        if (column + (end - at) + 1 > kColumns && column > kIndent) {
            out += "\n" + std::string(kIndent, ' ');
            column = kIndent;
        }
        if (column > kIndent) {
            out += ' ';
            ++column;
        }
        out.append(text, at, end - at);
        column += end - at;
        at = end + 1;
    }
    return out + "\n";
}

// Optimal string alignment distance: one for each insertion, deletion, change or swap.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i) {
        for (std::size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1,
                                d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
            }
        }
    }
    return d[a.size()][b.size()];
}

std::string option_names(const CLI::Option& option) {
    std::string names;
    for (const std::string& name : option.get_snames()) {
        names += "-" + name + ", ";
    }
    for (const std::string& name : option.get_lnames()) {
        names += "--" + name + ", ";
    }
    names.resize(names.size() - 2);
    const bool is_flag = option.get_expected_max() == 0;
    return is_flag ? names : names + " " + option.get_type_name();
}

} // namespace

Args::Args(std::string verb, std::string usage, std::string about, std::string details)
    : verb_(std::move(verb)),
      usage_(std::move(usage)),
      about_(std::move(about)),
      details_(std::move(details)),
      app_(std::make_unique<CLI::App>(about_, "wd " + verb_)) {
    app_->set_help_flag("-h,--help", "print this help");
}

Args::~Args() = default;

void Args::flag(const std::string& names, bool& target, std::string help) {
    app_->add_flag(names, target, std::move(help));
}

void Args::option(const std::string& names, std::optional<std::string>& target, std::string metavar,
                  std::string help) {
    app_->add_option_function<std::string>(
            names, [&target](const std::string& value) { target = value; }, std::move(help))
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->type_name(std::move(metavar));
}

void Args::list(const std::string& names, std::vector<std::string>& target, std::string metavar,
                std::string help) {
    app_->add_option(names, target, std::move(help))
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->type_name(std::move(metavar));
}

void Args::positional(std::string name, std::string& target) {
    app_->add_option(std::move(name), target)->required()->allow_extra_args(false);
}

void Args::positionals(std::string name, std::vector<std::string>& target, bool required) {
    app_->add_option(std::move(name), target)->required(required);
}

void Args::guest_command(std::vector<std::string>& argv) {
    guest_argv_ = &argv;
}

// Index of the first word that belongs to the guest.
std::size_t Args::end_of_own(const std::vector<std::string>& words) const {
    bool positional_seen = false;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i];
        if (word == "--" && positional_seen) {
            return i;
        }
        if (word.size() < 2 || word[0] != '-' || word == "--") {
            if (word != "--" && positional_seen) {
                return i;
            }
            positional_seen = positional_seen || word != "--";
            continue;
        }
        // An option that takes its value from the next word hides that word.
        const bool is_long = word.starts_with("--");
        const std::string name = is_long ? word.substr(0, word.find('=')) : word.substr(0, 2);
        const CLI::Option* option = app_->get_option_no_throw(name);
        const bool value_inside = is_long ? word.find('=') != std::string::npos : word.size() > 2;
        if (option != nullptr && option->get_expected_max() > 0 && !value_inside) {
            ++i;
        }
    }
    return words.size();
}

// CLI11 takes the next word as the value of "--name=": an empty value has to be a word.
void Args::split_empty_values(std::vector<std::string>& words) const {
    for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
        if (words[i].size() > 3 && words[i].starts_with("--") && words[i].ends_with("=") &&
            app_->get_option_no_throw(words[i].substr(0, words[i].size() - 1)) != nullptr) {
            words[i].pop_back();
            words.insert(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, "");
            ++i;
        }
    }
}

std::string Args::unknown_option(const std::string& word) const {
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> candidates;
    for (const CLI::Option* option : app_->get_options()) {
        for (const std::string& known : option->get_lnames()) {
            candidates.push_back("--" + known);
        }
    }
    const std::string near = nearest(name, candidates);
    return fmt::format("unknown option {}{}; see wd {} --help", quote(name),
                       near.empty() ? "" : fmt::format(", did you mean {}?", near), verb_);
}

Result<bool> Args::parse(std::vector<std::string> words) {
    if (guest_argv_ != nullptr) {
        const std::size_t end = end_of_own(words);
        const bool dashes = end < words.size() && words[end] == "--";
        guest_argv_->assign(words.begin() + static_cast<std::ptrdiff_t>(end + (dashes ? 1 : 0)),
                            words.end());
        words.resize(end);
        std::erase(words, "--"); // one before the first positional ends nothing
    }
    split_empty_values(words);
    std::reverse(words.begin(), words.end()); // CLI11 takes them from the back
    try {
        app_->allow_extras();
        app_->parse(std::move(words));
        for (const std::string& word : app_->remaining()) {
            if (word == "--") {
                continue; // CLI11 leaves it there
            }
            if (word.size() > 1 && word[0] == '-') {
                return fail(ErrorCode::invalid_argument, unknown_option(word));
            }
            return fail(
                ErrorCode::invalid_argument,
                fmt::format("unexpected argument {}; usage: wd {} {}", quote(word), verb_, usage_));
        }
    } catch (const CLI::CallForHelp&) {
        const std::string text = help();
        (void)write_all(STDOUT_FILENO, text);
        return true;
    } catch (const CLI::ParseError& error) {
        // A mistyped option may show only as a missing argument.
        for (const std::string& word : app_->remaining()) {
            if (word.size() > 1 && word[0] == '-' && word != "--") {
                return fail(ErrorCode::invalid_argument, unknown_option(word));
            }
        }
        return fail(
            ErrorCode::invalid_argument,
            fmt::format("{}; usage: wd {} {}", printable(error.what(), 200), verb_, usage_));
    }
    return false;
}

std::string Args::help() const {
    std::string out = fmt::format("Usage: wd {} {}\n\n{}\n", verb_, usage_, about_);
    out += "\nOptions:\n";
    for (const CLI::Option* option : app_->get_options()) {
        if (option->nonpositional()) {
            out += help_line(option_names(*option), option->get_description());
        }
    }
    if (!details_.empty()) {
        out += "\n" + details_ + "\n";
    }
    return out;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    const std::string* best = nullptr;
    std::size_t best_distance = 3; // two typing errors
    for (const std::string& candidate : candidates) {
        const std::size_t far = word.size() > 40 ? best_distance : distance(word, candidate);
        if (far < best_distance && far * 2 <= candidate.size()) {
            best = &candidate;
            best_distance = far;
        }
    }
    return best != nullptr ? *best : std::string();
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, ec] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
    const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
    double factor = 0;
    if (unit.empty() || unit == "s") {
        factor = 1000;
    } else if (unit == "ms") {
        factor = 1;
    } else if (unit == "m") {
        factor = 60e3;
    } else if (unit == "h") {
        factor = 3600e3;
    }
    const double ms = std::round(value * factor);
    if (ec != std::errc() || !std::isfinite(ms) || ms < 1 || ms > 1e15) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{} is not a duration; write seconds, or a number with ms, s, m or "
                                "h, for example 90s or 1.5m",
                                quote(text)));
    }
    return std::chrono::milliseconds(static_cast<std::int64_t>(ms));
}

Result<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words) {
    std::map<std::string, std::string> labels;
    for (const std::string& word : words) {
        const std::size_t at = word.find('=');
        if (at == std::string::npos || at == 0) {
            return fail(ErrorCode::invalid_argument,
                        fmt::format("label {} is not of the form KEY=VALUE", quote(word)));
        }
        labels[word.substr(0, at)] = word.substr(at + 1);
    }
    return labels;
}

namespace {

Result<void> read_env_file(const std::string& file, std::vector<std::string>& out) {
    // /dev/stdin and /dev/fd/N are as good as a file, so it is read to its end, not by its size.
    Fd fd(file == "-" ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                      : ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd) {
        return fail_errno(errno, "open " + quote(file, 200), ErrorCode::invalid_argument);
    }
    std::string text;
    char buffer[16384];
    for (;;) {
        const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return fail_errno(errno, "read " + quote(file, 200), ErrorCode::invalid_argument);
        }
        if (n == 0) {
            break;
        }
        text.append(buffer, static_cast<std::size_t>(n));
        if (text.size() > kMaxEnvFile) {
            return fail(ErrorCode::limit, quote(file, 200) + " is larger than 1 MiB");
        }
    }
    std::size_t number = 0;
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos || line[0] == '#') {
            continue;
        }
        if (!check_env(line)) {
            return fail(
                ErrorCode::invalid_argument,
                fmt::format("{}, line {}: not of the form NAME=VALUE", quote(file, 200), number));
        }
        out.push_back(line);
    }
    return {};
}

} // namespace

Result<std::vector<std::string>> parse_env(const std::vector<std::string>& words,
                                           const std::vector<std::string>& files) {
    std::vector<std::string> env;
    for (const std::string& file : files) {
        if (auto done = read_env_file(file, env); !done) {
            return fail(std::move(done).error());
        }
    }
    for (const std::string& word : words) {
        if (word.find('=') != std::string::npos) {
            if (auto valid = check_env(word); !valid) {
                return fail(std::move(valid).error());
            }
            env.push_back(word);
            continue;
        }
        const char* value = word.empty() ? nullptr : ::getenv(word.c_str());
        if (value == nullptr) { // the word itself may be a secret that lost its name
            return fail(ErrorCode::invalid_argument,
                        fmt::format("--env, number {}: not of the form NAME=VALUE, nor the name of "
                                    "a variable that is set here to pass on",
                                    &word - words.data() + 1));
        }
        env.push_back(word + "=" + value);
    }
    return env;
}

Result<std::uint32_t> parse_count(std::string_view text, std::string_view what) {
    std::uint32_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, ec] = std::from_chars(text.data(), end, value);
    if (ec != std::errc() || rest != end) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{} {} is not a whole number", what, quote(text)));
    }
    return value;
}

} // namespace wd::cli
