#include "vmm/qmp_message.hpp"

#include "util/text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace wd::vmm {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxText = 200;

// A member of an object, or null.
const Json& member(const Json& object, const char* key) {
    static const Json null;
    const auto at = object.find(key); // end() for what is no object
    return at == object.end() ? null : *at;
}

std::string text(const Json& value) {
    return value.is_string() ? printable(value.get_ref<const std::string&>(), kMaxText)
                             : std::string();
}

bool flag(const Json& value) {
    return value.is_boolean() && value.get<bool>();
}

std::uint64_t number(const Json& value) {
    return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
}

// Nesting outside strings. The parser itself is not recursive, but each level costs it far more
// memory than the one byte it takes in the text.
bool too_deep(std::string_view line) {
    int depth = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (in_string) {
            if (c == '\\') {
                ++i;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > kMaxQmpDepth) {
                return true;
            }
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
    return false;
}

QmpGreeting read_greeting(const Json& greeting) {
    const Json& qemu = member(member(greeting, "version"), "qemu");
    return {.version = fmt::format("{}.{}.{}", number(member(qemu, "major")),
                                   number(member(qemu, "minor")), number(member(qemu, "micro")))};
}

QmpEvent read_event(const Json& message) {
    const Json& data = member(message, "data");
    return {.name = text(member(message, "event")),
            .reason = text(member(data, "reason")),
            .guest = flag(member(data, "guest")),
            .nospace = flag(member(data, "nospace")),
            .action = text(member(data, "action")),
            .id = text(member(data, "id")),
            .open = flag(member(data, "open"))};
}

} // namespace

Result<QmpMessage> parse_qmp(std::string_view line) {
    if (line.size() > kMaxQmpLine || too_deep(line)) {
        return fail(ErrorCode::invalid_argument, "a QMP message that is too large or too deep");
    }
    const Json message = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!message.is_object()) {
        return fail(ErrorCode::invalid_argument, fmt::format("not a QMP message: {}", quote(line)));
    }
    if (message.contains("event")) {
        return read_event(message);
    }
    if (message.contains("return")) {
        return QmpReply{.id = number(member(message, "id")), .good = true};
    }
    if (message.contains("error")) {
        return QmpReply{.id = number(member(message, "id")),
                        .good = false,
                        .error = text(member(member(message, "error"), "desc"))};
    }
    if (message.contains("QMP")) {
        return read_greeting(member(message, "QMP"));
    }
    return fail(ErrorCode::invalid_argument, fmt::format("not a QMP message: {}", quote(line)));
}

std::string qmp_command(std::string_view command, std::uint64_t id, std::string_view arguments) {
    Json message{{"execute", command}, {"id", id}};
    if (!arguments.empty()) {
        message["arguments"] = Json::parse(arguments);
    }
    return message.dump() + "\n";
}

} // namespace wd::vmm
