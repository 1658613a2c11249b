#include "control/message.hpp"

#include "util/text.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace wd::control {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kShimStates[] = {"waiting", "launching", "running", "snapshotting",
                                            "ended"};

// Reads the members of one object; the first problem is kept and everything after it is a default.
class Fields {
public:
    explicit Fields(const Json& object) : object_(object) {}

    template <class Int>
    Int integer(const char* key, Int highest = std::numeric_limits<Int>::max()) {
        const Json* value = find(key);
        if (value == nullptr) {
            return 0;
        }
        if (!value->is_number_unsigned() ||
            value->get<std::uint64_t>() > static_cast<std::uint64_t>(highest)) {
            note(key, "is not a number in range");
            return 0;
        }
        return static_cast<Int>(value->get<std::uint64_t>());
    }
    bool boolean(const char* key) {
        const Json* value = find(key);
        if (value != nullptr && !value->is_boolean()) {
            note(key, "is not true or false");
            value = nullptr;
        }
        return value != nullptr && value->get<bool>();
    }
    std::string text(const char* key, std::size_t limit) {
        const Json* value = find(key);
        if (value == nullptr) {
            return {};
        }
        if (!value->is_string() || value->get_ref<const std::string&>().size() > limit) {
            note(key, "is not a text within its limit");
            return {};
        }
        return value->get<std::string>();
    }
    std::vector<std::string> texts(const char* key, std::size_t limit) {
        const Json* value = array(key);
        std::vector<std::string> out;
        if (value == nullptr) {
            return out;
        }
        for (const Json& item : *value) {
            if (!item.is_string() || item.get_ref<const std::string&>().size() > limit) {
                note(key, "has an item that is not a text within its limit");
                return {};
            }
            out.push_back(item.get<std::string>());
        }
        return out;
    }
    template <class Enum>
    Enum word(const char* key) {
        const auto value = model::from_string<Enum>(text(key, 32));
        if (!value) {
            note(key, "is not a known word");
            return Enum{};
        }
        return *value;
    }
    // Of the word in this list.
    int index(const char* key, std::span<const std::string_view> words) {
        const auto at = std::find(words.begin(), words.end(), text(key, 32));
        if (at == words.end()) {
            note(key, "is not a known word");
            return 0;
        }
        return static_cast<int>(at - words.begin());
    }
    const Json* array(const char* key) {
        const Json* value = find(key);
        if (value != nullptr && !value->is_array()) {
            note(key, "is not a list");
            return nullptr;
        }
        return value;
    }
    void note(const char* key, std::string_view problem) {
        if (problem_.empty()) {
            problem_ = fmt::format("\"{}\" {}", key, problem);
        }
    }
    const std::string& problem() const { return problem_; }

private:
    const Json* find(const char* key) {
        const auto at = object_.find(key);
        if (at == object_.end()) {
            note(key, "is missing");
            return nullptr;
        }
        return &*at;
    }
    const Json& object_;
    std::string problem_;
};

// Environment values may be any bytes; JSON strings are UTF-8. Bytes above 0x7f travel as the code
// points U+0080–U+00FF, which loses nothing.
std::string bytes_to_text(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x80) {
            out += c;
        } else {
            out += static_cast<char>(0xc0 | (byte >> 6));
            out += static_cast<char>(0x80 | (byte & 0x3f));
        }
    }
    return out;
}

std::string text_to_bytes(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte < 0x80 || i + 1 == text.size()) {
            out += text[i];
        } else {
            out += static_cast<char>(((byte & 0x03) << 6) |
                                     (static_cast<unsigned char>(text[++i]) & 0x3f));
        }
    }
    return out;
}

Json to_json(const Launch& launch) {
    Json layers = Json::array();
    for (const DiskLayer& layer : launch.layers) {
        layers.push_back({{"qcow2", layer.qcow2}, {"read_only", layer.read_only}});
    }
    Json env = Json::array();
    for (const std::string& assignment : launch.env) {
        env.push_back(bytes_to_text(assignment));
    }
    return {{"op", "launch"},
            {"accel", model::to_string(launch.accel)},
            {"qemu", launch.qemu},
            {"cpus", launch.cpus},
            {"memory_bytes", launch.memory_bytes},
            {"restore", launch.restore},
            {"layers", std::move(layers)},
            {"hostname", launch.hostname},
            {"machine_id", launch.machine_id},
            {"env", std::move(env)},
            {"boot_timeout_ms", launch.boot_timeout_ms},
            {"probe", launch.probe}};
}
Json to_json(const OpenSession&) {
    return {{"op", "open_session"}};
}
Json to_json(const Shutdown& shutdown) {
    return {{"op", "shutdown"}, {"deadline_ms", shutdown.deadline_ms}};
}
Json to_json(const Snapshot& snapshot) {
    return {{"op", "snapshot"}, {"compact", snapshot.compact}};
}
Json to_json(const Snapshotted& snapshotted) {
    return {{"op", "snapshotted"}, {"dirty_bytes", snapshotted.dirty_bytes}};
}
Json to_json(const SnapshotFailed& failed) {
    return {{"op", "snapshot_failed"}, {"message", failed.message}};
}
Json to_json(const Activity& activity) {
    return {{"op", "activity"}, {"sessions", activity.sessions}};
}
Json to_json(const Hello& hello) {
    return {{"op", "hello"},
            {"version", hello.version},
            {"state", kShimStates[static_cast<int>(hello.state)]},
            {"sessions", hello.sessions}};
}
Json to_json(const Progress& progress) {
    return {{"op", "progress"}, {"phase", model::to_string(progress.phase)}};
}
Json to_json(const Ready& ready) {
    return {{"op", "ready"},
            {"launch_us", ready.launch_us},
            {"vmm_us", ready.vmm_us},
            {"hello_us", ready.hello_us},
            {"ready_us", ready.ready_us},
            {"guest_agent_us", ready.guest_agent_us},
            {"guest_mount_us", ready.guest_mount_us},
            {"guest_identity_us", ready.guest_identity_us},
            {"root_bytes", ready.root_bytes},
            {"agent_version", ready.agent_version},
            {"kernel_release", ready.kernel_release}};
}
Json to_json(const Ended& ended) {
    return {{"op", "ended"},
            {"reason", model::to_string(ended.end.reason)},
            {"detail", ended.end.detail},
            {"limit", ended.end.limit},
            {"peak", ended.end.peak},
            {"console_tail", ended.console_tail},
            {"was_ready", ended.was_ready}};
}

Launch read_launch(Fields& fields) {
    Launch launch;
    launch.accel = fields.word<model::Accel>("accel");
    launch.qemu = fields.text("qemu", 4096);
    launch.cpus = fields.integer<std::uint32_t>("cpus");
    launch.memory_bytes = fields.integer<std::uint64_t>("memory_bytes");
    launch.restore = fields.boolean("restore");
    if (const Json* layers = fields.array("layers")) {
        for (const Json& item : *layers) {
            Fields layer(item);
            launch.layers.push_back(
                {.qcow2 = layer.boolean("qcow2"), .read_only = layer.boolean("read_only")});
            if (!layer.problem().empty()) {
                fields.note("layers", layer.problem());
            }
        }
    }
    launch.hostname = fields.text("hostname", 64);
    launch.machine_id = fields.text("machine_id", 32);
    for (const std::string& assignment : fields.texts("env", kMaxMessage)) {
        launch.env.push_back(text_to_bytes(assignment));
    }
    launch.boot_timeout_ms = fields.integer<std::uint64_t>("boot_timeout_ms");
    launch.probe = fields.boolean("probe");
    return launch;
}

Ready read_ready(Fields& fields) {
    Ready ready;
    ready.launch_us = fields.integer<std::uint64_t>("launch_us");
    ready.vmm_us = fields.integer<std::uint64_t>("vmm_us");
    ready.hello_us = fields.integer<std::uint64_t>("hello_us");
    ready.ready_us = fields.integer<std::uint64_t>("ready_us");
    ready.guest_agent_us = fields.integer<std::uint64_t>("guest_agent_us");
    ready.guest_mount_us = fields.integer<std::uint64_t>("guest_mount_us");
    ready.guest_identity_us = fields.integer<std::uint64_t>("guest_identity_us");
    ready.root_bytes = fields.integer<std::uint64_t>("root_bytes");
    ready.agent_version = fields.text("agent_version", 64);
    ready.kernel_release = fields.text("kernel_release", 64);
    return ready;
}

Ended read_ended(Fields& fields) {
    Ended ended;
    ended.end.reason = fields.word<model::EndReason>("reason");
    // Cut rather than refused: an end must be heard.
    ended.end.detail = printable(fields.text("detail", kMaxMessage), 512);
    ended.end.limit = fields.integer<std::uint64_t>("limit");
    ended.end.peak = fields.integer<std::uint64_t>("peak");
    ended.console_tail =
        printable(fields.text("console_tail", 4 * kMaxConsoleTail), 4 * kMaxConsoleTail);
    ended.was_ready = fields.boolean("was_ready");
    return ended;
}

Result<Json> parse(std::string_view text) {
    if (text.size() > kMaxMessage) {
        return fail(
            ErrorCode::invalid_argument,
            fmt::format("a message of {} bytes; the limit is {}", text.size(), kMaxMessage));
    }
    Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
        return fail(ErrorCode::invalid_argument, fmt::format("not a JSON object: {}", quote(text)));
    }
    return json;
}

template <class Message>
Result<Message> finish(Message message, const Fields& fields) {
    if (!fields.problem().empty()) {
        return fail(ErrorCode::invalid_argument, fields.problem());
    }
    return message;
}

} // namespace

namespace {

struct ExitStatus {
    model::EndReason reason;
    int status;
};
constexpr ExitStatus kExitStatuses[] = {
    {model::EndReason::stopped, 0},     {model::EndReason::oom, 41},
    {model::EndReason::pids, 42},       {model::EndReason::disk, 43},
    {model::EndReason::timeout, 44},    {model::EndReason::policy, 46},
    {model::EndReason::vmm_crash, 47},  {model::EndReason::host_pressure, 48},
    {model::EndReason::agent_lost, 49},
};

} // namespace

int exit_status_of(model::EndReason reason) {
    for (const ExitStatus& row : kExitStatuses) {
        if (row.reason == reason) {
            return row.status;
        }
    }
    return 1;
}

std::optional<model::EndReason> reason_of_exit_status(int status) {
    for (const ExitStatus& row : kExitStatuses) {
        if (row.status == status) {
            return row.reason;
        }
    }
    return std::nullopt;
}

std::string encode(const Request& request) {
    return std::visit([](const auto& r) { return to_json(r); }, request)
        .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string encode(const Event& event) {
    return std::visit([](const auto& e) { return to_json(e); }, event)
        .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Request> decode_request(std::string_view text) {
    auto json = parse(text);
    if (!json) {
        return fail(std::move(json).error());
    }
    Fields fields(*json);
    const std::string op = fields.text("op", 32);
    if (op == "launch") {
        return finish<Request>(read_launch(fields), fields);
    }
    if (op == "open_session") {
        return finish<Request>(OpenSession{}, fields);
    }
    if (op == "shutdown") {
        return finish<Request>(
            Shutdown{.deadline_ms = fields.integer<std::uint64_t>("deadline_ms", 3'600'000)},
            fields);
    }
    if (op == "snapshot") {
        return finish<Request>(Snapshot{.compact = fields.boolean("compact")}, fields);
    }
    return fail(ErrorCode::invalid_argument, fmt::format("unknown request {}", quote(op)));
}

Result<Event> decode_event(std::string_view text) {
    auto json = parse(text);
    if (!json) {
        return fail(std::move(json).error());
    }
    Fields fields(*json);
    const std::string op = fields.text("op", 32);
    if (op == "hello") {
        Hello hello;
        hello.version = fields.integer<int>("version");
        hello.state = static_cast<ShimState>(fields.index("state", kShimStates));
        hello.sessions = fields.integer<std::uint32_t>("sessions");
        return finish<Event>(hello, fields);
    }
    if (op == "progress") {
        return finish<Event>(Progress{.phase = fields.word<model::Phase>("phase")}, fields);
    }
    if (op == "ready") {
        return finish<Event>(read_ready(fields), fields);
    }
    if (op == "snapshotted") {
        return finish<Event>(
            Snapshotted{.dirty_bytes = fields.integer<std::uint64_t>("dirty_bytes")}, fields);
    }
    if (op == "snapshot_failed") {
        return finish<Event>(
            SnapshotFailed{.message = printable(fields.text("message", kMaxMessage), 512)}, fields);
    }
    if (op == "activity") {
        return finish<Event>(Activity{.sessions = fields.integer<std::uint32_t>("sessions")},
                             fields);
    }
    if (op == "ended") {
        return finish<Event>(read_ended(fields), fields);
    }
    return fail(ErrorCode::invalid_argument, fmt::format("unknown event {}", quote(op)));
}

} // namespace wd::control
