#pragma once
// What wd prints: data on stdout, the rest on stderr.

#include "cli/bus.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace wd::cli {

// A table with a header and columns two spaces apart; text from outside is made harmless.
class Table {
public:
    explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
    std::string text() const;

private:
    std::vector<std::vector<std::string>> rows_;
};

// To stdout, as a whole. Exit status: 0, or 70 when stdout takes no more (a full disk, a closed
// descriptor); a reader that has gone ends wd by SIGPIPE, like any other filter.
int print(std::string_view text);
int print_json(const Json& value); // indented, one value, newline

Json error_json(const Error& error); // {"error": {"code", "message"}}

// "wd: message" on stderr and, with `json`, the error on stdout. Returns the exit status.
int report(const Error& error, bool json = false);
void note(std::string_view message); // "wd: message" on stderr

bool is_terminal(int fd);

// One line on stderr that is rewritten; nothing unless stderr is a terminal.
class Progress {
public:
    Progress() : active_(is_terminal(2)) {}
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    ~Progress() { clear(); }

    bool active() const { return active_; }
    void show(std::string_view line);
    void clear();

private:
    bool active_;
    bool shown_ = false;
};

// "12s", "5m", "3h", "4d" since a moment in microseconds of real time; "-" for 0.
std::string age(std::uint64_t since_us);
// RFC 3339, UTC, seconds; "-" for 0.
std::string timestamp(std::uint64_t us);
std::string size_or_dash(std::uint64_t bytes);
std::string or_dash(std::string text);

// "key:  value" lines of an object: sizes and times readable, lists and dictionaries indented.
std::string fields_text(const Json& object);

// Makes what a guest wrote safe for a terminal: control characters are shown, not obeyed. Keeps an
// unfinished UTF-8 sequence back until it is whole.
class TerminalFilter {
public:
    std::string feed(std::string_view bytes);

private:
    std::string kept_;
};

std::string base64(std::string_view bytes);

} // namespace wd::cli
