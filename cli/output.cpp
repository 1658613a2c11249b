#include "cli/output.hpp"

#include "util/size.hpp"
#include "util/text.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace wd::cli {
namespace {

// Columns on a terminal, one a character (good enough for names, which are ASCII).
std::size_t width(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::uint64_t now_us() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                          std::chrono::system_clock::now().time_since_epoch())
                                          .count());
}

} // namespace

std::string Table::text() const {
    std::vector<std::size_t> widths(rows_.front().size());
    std::vector<std::vector<std::string>> cells;
    for (const auto& row : rows_) {
        auto& safe = cells.emplace_back();
        for (std::size_t i = 0; i < widths.size(); ++i) {
            std::string cell = i < row.size() ? row[i] : "";
            std::replace(cell.begin(), cell.end(), '\n', ' ');
            std::replace(cell.begin(), cell.end(), '\t', ' ');
            cell = printable(cell, 300);
            widths[i] = std::max(widths[i], width(cell));
            safe.push_back(std::move(cell));
        }
    }
    std::string out;
    for (const auto& row : cells) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            out += row[i];
            if (i + 1 < row.size()) {
                out.append(widths[i] - width(row[i]) + 2, ' ');
            }
        }
        out.erase(out.find_last_not_of(' ') + 1);
        out += '\n';
    }
    return out;
}

int print(std::string_view text) {
    if (auto written = write_all(STDOUT_FILENO, text); !written) {
        return report(std::move(written).error().context("write to standard output"));
    }
    return 0;
}

int print_json(const Json& value) {
    return print(value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Json error_json(const Error& error) {
    return {
        {"error",
         {{"code", std::string(error_code_info(error.code).name)}, {"message", error.message}}}};
}

int report(const Error& error, bool json) {
    note(error.message);
    if (json) {
        (void)print_json(error_json(error));
    }
    return error_code_info(error.code).exit_status;
}

void note(std::string_view message) {
    (void)write_all(STDERR_FILENO, "wd: " + printable(message, 4000) + "\n");
}

bool is_terminal(int fd) {
    return ::isatty(fd) == 1;
}

void Progress::show(std::string_view line) {
    if (!active_) {
        return;
    }
    winsize size{};
    const std::size_t columns =
        ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
    std::string text = printable(line, columns - 1);
    (void)write_all(STDERR_FILENO, "\r" + text + "\x1b[K"); // erase to the end of the line
    shown_ = true;
}

void Progress::clear() {
    if (shown_) {
        (void)write_all(STDERR_FILENO, "\r\x1b[K");
        shown_ = false;
    }
}

std::string age(std::uint64_t since_us) {
    if (since_us == 0) {
        return "-";
    }
    const std::uint64_t now = now_us();
    const std::uint64_t seconds = now > since_us ? (now - since_us) / 1000000 : 0;
    if (seconds < 120) {
        return fmt::format("{}s", seconds);
    }
    if (seconds < 120 * 60) {
        return fmt::format("{}m", seconds / 60);
    }
    if (seconds < 48 * 3600) {
        return fmt::format("{}h", seconds / 3600);
    }
    return fmt::format("{}d", seconds / 86400);
}

std::string timestamp(std::uint64_t us) {
    if (us == 0) {
        return "-";
    }
    const auto seconds = static_cast<std::time_t>(us / 1000000);
    std::tm utc{};
    char text[32];
    if (::gmtime_r(&seconds, &utc) == nullptr ||
        std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) {
        return "-";
    }
    return text;
}

std::string size_or_dash(std::uint64_t bytes) {
    return bytes == 0 ? "-" : format_size(bytes);
}

std::string or_dash(std::string text) {
    return text.empty() ? "-" : text;
}

namespace {

std::string scalar_text(const std::string& key, const Json& value) {
    if (value.is_string()) {
        return or_dash(printable(value.get<std::string>(), 1000));
    }
    if (value.is_number_unsigned() && key.ends_with("_bytes")) {
        return size_or_dash(value.get<std::uint64_t>());
    }
    if (value.is_number_unsigned() && key.ends_with("_us")) {
        return timestamp(value.get<std::uint64_t>());
    }
    if (value.is_number_float()) {
        return fmt::format("{:.1f}", value.get<double>());
    }
    if (value.is_boolean()) {
        return value.get<bool>() ? "yes" : "no";
    }
    return value.dump();
}

// "memory_bytes" -> "memory", "created_us" -> "created"
std::string label_of(std::string key) {
    for (const std::string_view suffix : {"_bytes", "_us"}) {
        if (key.ends_with(suffix)) {
            key.resize(key.size() - suffix.size());
        }
    }
    return printable(key, 60);
}

// D-Bus dictionaries have no order: what a person looks for comes first.
Json in_order(const Json& object) {
    Json out = Json::object();
    for (const char* key : {"id", "name", "version", "state", "end_reason", "end_detail"}) {
        if (const auto found = object.find(key); found != object.end()) {
            out[key] = *found;
        }
    }
    for (const auto& [key, value] : object.items()) {
        if (!out.contains(key)) {
            out[key] = value;
        }
    }
    return out;
}

} // namespace

std::string fields_text(const Json& unordered) {
    const Json object = in_order(unordered);
    std::size_t columns = 0;
    for (const auto& [key, value] : object.items()) {
        columns = std::max(columns, label_of(key).size());
    }
    std::string out;
    for (const auto& [key, value] : object.items()) {
        std::vector<std::string> lines;
        if (value.is_object()) {
            for (const auto& [inner, text] : value.items()) {
                lines.push_back(printable(inner, 200) + "=" + scalar_text(inner, text));
            }
        } else if (value.is_array()) {
            for (const Json& element : value) {
                lines.push_back(scalar_text("", element));
            }
        } else {
            lines.push_back(scalar_text(key, value));
        }
        if (lines.empty()) {
            lines.emplace_back("-");
        }
        std::string label = label_of(key) + ":";
        for (const std::string& line : lines) {
            label.resize(columns + 3, ' ');
            out += label + line + "\n";
            label.clear();
        }
    }
    return out;
}

std::string TerminalFilter::feed(std::string_view bytes) {
    kept_ += bytes;
    // At most 3 bytes at the end may be the start of a sequence that is not whole yet.
    std::size_t end = kept_.size();
    for (std::size_t back = 1; back <= 3 && back <= kept_.size(); ++back) {
        const auto byte = static_cast<unsigned char>(kept_[kept_.size() - back]);
        if (byte >= 0xc0) {
            const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
            end = length > back ? kept_.size() - back : end;
            break;
        }
        if (byte < 0x80) {
            break;
        }
    }
    // A carriage return before a newline is what consoles write; elsewhere it would overwrite.
    std::string whole;
    for (std::size_t i = 0; i < end; ++i) {
        if (kept_[i] != '\r') {
            whole += kept_[i];
        }
    }
    kept_.erase(0, end);
    return printable(whole, whole.size() * 4 + 1);
}

std::string base64(std::string_view bytes) {
    static constexpr char kAlphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t group = 0;
        for (std::size_t k = 0; k < 3; ++k) {
            group =
                group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
        }
        for (std::size_t k = 0; k < 4; ++k) {
            out += i + k > bytes.size() ? '=' : kAlphabet[group >> (18 - 6 * k) & 63];
        }
    }
    return out;
}

} // namespace wd::cli
