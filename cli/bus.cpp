#include "cli/bus.hpp"

#include "bus/error_name.hpp"
#include "util/ids.hpp"
#include "util/text.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <time.h>

namespace wd::cli {
namespace {

struct MessageUnref {
    void operator()(sd_bus_message* message) const noexcept { sd_bus_message_unref(message); }
};
using MessagePtr = std::unique_ptr<sd_bus_message, MessageUnref>;

// sd-bus returns a negative errno; inside this file that travels as an exception and ends at the
// functions of Bus.
struct BusFailure {
    int errnum;
};

int check(int r) {
    if (r < 0) {
        throw BusFailure{-r};
    }
    return r;
}

// The bus drops a client that sends text which is not UTF-8, so it is refused here.
struct NotText {
    std::string text;
};

const char* checked(const std::string& text) {
    if (!is_valid_utf8(text) || text.find('\0') != std::string::npos) {
        throw NotText{text};
    }
    return text.c_str();
}

void append_strings(sd_bus_message* message, const std::vector<std::string>& values) {
    check(sd_bus_message_open_container(message, 'a', "s"));
    for (const std::string& value : values) {
        check(sd_bus_message_append_basic(message, 's', checked(value)));
    }
    check(sd_bus_message_close_container(message));
}

struct ValueWriter {
    sd_bus_message* message;

    void operator()(bool value) const { check(sd_bus_message_append(message, "v", "b", value)); }
    void operator()(std::uint32_t value) const {
        check(sd_bus_message_append(message, "v", "u", value));
    }
    void operator()(std::uint64_t value) const {
        check(sd_bus_message_append(message, "v", "t", value));
    }
    void operator()(const std::string& value) const {
        check(sd_bus_message_append(message, "v", "s", checked(value)));
    }
    void operator()(const std::vector<std::string>& values) const {
        check(sd_bus_message_open_container(message, 'v', "as"));
        append_strings(message, values);
        check(sd_bus_message_close_container(message));
    }
    void operator()(const std::map<std::string, std::string>& values) const {
        check(sd_bus_message_open_container(message, 'v', "a{ss}"));
        check(sd_bus_message_open_container(message, 'a', "{ss}"));
        for (const auto& [key, value] : values) {
            check(sd_bus_message_append(message, "{ss}", checked(key), checked(value)));
        }
        check(sd_bus_message_close_container(message));
        check(sd_bus_message_close_container(message));
    }
};

struct ArgumentWriter {
    sd_bus_message* message;

    void operator()(const std::string& value) const {
        check(sd_bus_message_append_basic(message, 's', checked(value)));
    }
    void operator()(bool value) const { check(sd_bus_message_append(message, "b", value)); }
    void operator()(const std::vector<std::string>& values) const {
        append_strings(message, values);
    }
    void operator()(const Options& options) const {
        check(sd_bus_message_open_container(message, 'a', "{sv}"));
        for (const auto& [key, value] : options.entries()) {
            check(sd_bus_message_open_container(message, 'e', "sv"));
            check(sd_bus_message_append_basic(message, 's', key.c_str()));
            std::visit(ValueWriter{message}, value);
            check(sd_bus_message_close_container(message));
        }
        check(sd_bus_message_close_container(message));
    }
};

template <class T>
T read_basic(sd_bus_message* message, char type) {
    T value{};
    check(sd_bus_message_read_basic(message, type, &value));
    return value;
}

class Reader {
public:
    Reader(sd_bus_message* message, std::vector<Fd>& fds) : message_(message), fds_(fds) {}

    Json all() {
        Json out = Json::array();
        while (check(sd_bus_message_at_end(message_, 0)) == 0) {
            out.push_back(value());
        }
        return out;
    }

private:
    Json value() {
        char type = 0;
        const char* contents = nullptr;
        check(sd_bus_message_peek_type(message_, &type, &contents));
        switch (type) {
        case 'y':
            return read_basic<std::uint8_t>(message_, type);
        case 'b':
            return read_basic<int>(message_, type) != 0;
        case 'n':
            return read_basic<std::int16_t>(message_, type);
        case 'q':
            return read_basic<std::uint16_t>(message_, type);
        case 'i':
            return read_basic<std::int32_t>(message_, type);
        case 'u':
            return read_basic<std::uint32_t>(message_, type);
        case 'x':
            return read_basic<std::int64_t>(message_, type);
        case 't':
            return read_basic<std::uint64_t>(message_, type);
        case 'd':
            return read_basic<double>(message_, type);
        case 's':
        case 'o':
        case 'g':
            return std::string(read_basic<const char*>(message_, type));
        case 'h':
            return descriptor();
        case 'a':
            return contents[0] == '{' ? dictionary(contents) : sequence('a', contents);
        case 'v': {
            check(sd_bus_message_enter_container(message_, type, contents));
            Json inner = value();
            check(sd_bus_message_exit_container(message_));
            return inner;
        }
        default: // struct
            return sequence(type, contents);
        }
    }

    Json descriptor() {
        const int borrowed = read_basic<int>(message_, 'h');
        const int own = ::fcntl(borrowed, F_DUPFD_CLOEXEC, 3);
        if (own < 0) {
            throw BusFailure{errno};
        }
        fds_.emplace_back(own);
        return fds_.size() - 1;
    }

    Json sequence(char type, const char* contents) {
        check(sd_bus_message_enter_container(message_, type, contents));
        Json out = all();
        check(sd_bus_message_exit_container(message_));
        return out;
    }

    Json dictionary(const char* contents) {
        Json out = Json::object();
        const std::string pair(contents + 1, std::strlen(contents) - 2);
        check(sd_bus_message_enter_container(message_, 'a', contents));
        while (check(sd_bus_message_enter_container(message_, 'e', pair.c_str())) > 0) {
            const Json key = value();
            out[key.is_string() ? key.get<std::string>() : key.dump()] = value();
            check(sd_bus_message_exit_container(message_));
        }
        check(sd_bus_message_exit_container(message_));
        return out;
    }

    sd_bus_message* message_;
    std::vector<Fd>& fds_;
};

constexpr std::string_view kStartIt =
    "start it with: systemctl start workdird; see why it does not run with: "
    "systemctl status workdird";

bool is_absence(std::string_view name) {
    return name == "org.freedesktop.DBus.Error.ServiceUnknown" ||
           name == "org.freedesktop.DBus.Error.NameHasNoOwner" ||
           name == "org.freedesktop.DBus.Error.TimedOut" || // it was to be started, and did not
           name.starts_with("org.freedesktop.DBus.Error.Spawn.") ||
           name.starts_with("org.freedesktop.systemd1.");
}

Error explain(const sd_bus_error& raw, const char* destination) {
    const std::string_view name = raw.name != nullptr ? raw.name : "";
    const std::string_view text = raw.message != nullptr ? raw.message : "";
    Error error = bus::error_from_name(name, text);
    if (std::string_view(destination) != kBusName) {
        return error;
    }
    if (is_absence(name)) {
        // What the bus says of a name without owner adds nothing; of a failed start it does.
        const bool bare = name.ends_with(".ServiceUnknown") || name.ends_with(".NameHasNoOwner");
        return Error{ErrorCode::unreachable, error.errnum,
                     fmt::format("workdird is not running{}; {}",
                                 bare ? "" : fmt::format(" ({})", text), kStartIt)};
    }
    if (name == "org.freedesktop.DBus.Error.NoReply" ||
        name == "org.freedesktop.DBus.Error.Disconnected") {
        return Error{ErrorCode::unreachable, error.errnum,
                     "workdird went away before it answered; see why with: "
                     "journalctl -u workdird"};
    }
    if (name == "org.freedesktop.DBus.Error.AccessDenied") {
        error.message += "; members of group workdir may manage sandboxes: adduser USER workdir, "
                         "then log in anew";
    }
    return error;
}

Result<Reply> read_reply(sd_bus_message* message, const char* destination) {
    if (const sd_bus_error* error = sd_bus_message_get_error(message)) {
        return fail(explain(*error, destination));
    }
    try {
        Reply reply;
        reply.values = Reader(message, reply.fds).all();
        return reply;
    } catch (const BusFailure& failure) {
        return fail_errno(failure.errnum, "read a reply from the bus");
    }
}

std::optional<Signal> read_signal(sd_bus_message* message) {
    try {
        std::vector<Fd> fds;
        Signal signal;
        signal.path = sd_bus_message_get_path(message);
        signal.member = sd_bus_message_get_member(message);
        signal.values = Reader(message, fds).all();
        return signal;
    } catch (const BusFailure&) {
        return std::nullopt; // not of the shape that its signature says; ignored as foreign
    }
}

struct Pending {
    Bus::Done done;
    const char* destination;
};

void drop_pending(void* userdata) {
    delete static_cast<Pending*>(userdata);
}

int on_reply(sd_bus_message* message, void* userdata, sd_bus_error*) {
    const auto* pending = static_cast<Pending*>(userdata);
    pending->done(read_reply(message, pending->destination));
    return 1;
}

struct Handler {
    std::string member; // empty: any
    std::function<void(const Signal&)> handle;
};

void drop_handler(void* userdata) {
    delete static_cast<Handler*>(userdata);
}

int on_message(sd_bus_message* message, void* userdata, sd_bus_error*) {
    const auto* handler = static_cast<Handler*>(userdata);
    const char* member = sd_bus_message_get_member(message);
    if (sd_bus_message_is_signal(message, nullptr, nullptr) > 0 &&
        (handler->member.empty() || (member != nullptr && handler->member == member))) {
        if (const auto signal = read_signal(message)) {
            handler->handle(*signal);
        }
    }
    return 0;
}

// Gives the userdata to the slot, and the slot to the bus.
void float_slot(sd_bus_slot* slot, sd_bus_destroy_t destroy) {
    (void)sd_bus_slot_set_destroy_callback(slot, destroy);
    (void)sd_bus_slot_set_floating(slot, 1);
    sd_bus_slot_unref(slot);
}

MessagePtr make_message(sd_bus* bus, const Call& call) {
    sd_bus_message* raw = nullptr;
    check(sd_bus_message_new_method_call(bus, &raw, call.destination, call.path.c_str(),
                                         call.interface, call.member));
    MessagePtr message(raw);
    check(sd_bus_message_set_allow_interactive_authorization(raw, 1));
    for (const Argument& argument : call.arguments) {
        std::visit(ArgumentWriter{raw}, argument);
    }
    return message;
}

} // namespace

Result<Bus> Bus::open() {
    sd_bus* raw = nullptr;
    if (const int r = sd_bus_open_system(&raw); r < 0) {
        return fail(ErrorCode::unreachable,
                    fmt::format("cannot reach the system bus: {}; workdird needs it: "
                                "systemctl start dbus",
                                std::strerror(-r)),
                    -r);
    }
    return Bus(raw);
}

void Bus::start(const Call& call, Done done) {
    try {
        const MessagePtr message = make_message(bus_.get(), call);
        const std::uint64_t timeout =
            call.timeout.count() == 0
                ? UINT64_MAX
                : static_cast<std::uint64_t>(
                      std::chrono::duration_cast<std::chrono::microseconds>(call.timeout).count());
        auto pending = std::make_unique<Pending>(Pending{done, call.destination});
        sd_bus_slot* slot = nullptr;
        check(
            sd_bus_call_async(bus_.get(), &slot, message.get(), on_reply, pending.get(), timeout));
        (void)pending.release();
        float_slot(slot, drop_pending);
    } catch (const BusFailure& failure) {
        done(fail_errno(failure.errnum, fmt::format("call {}", call.member),
                        failure.errnum == ENOTCONN || failure.errnum == ECONNRESET
                            ? ErrorCode::unreachable
                            : ErrorCode::internal));
    } catch (const NotText& bad) {
        done(fail(ErrorCode::invalid_argument,
                  bad.text.size() > 60
                      ? "an argument is not valid UTF-8, which is all that D-Bus can carry"
                      : fmt::format("{} is not valid UTF-8, which is all that D-Bus can carry",
                                    quote(bad.text))));
    }
}

Result<Reply> Bus::call(const Call& call) {
    std::optional<Result<Reply>> result;
    start(call, [&](Result<Reply> reply) { result.emplace(std::move(reply)); });
    while (!result) {
        if (auto pumped = pump(); !pumped) {
            return fail(std::move(pumped).error());
        }
    }
    return std::move(*result);
}

Result<void> Bus::on_signal(const std::string& match, std::function<void(const Signal&)> handler) {
    auto userdata = std::make_unique<Handler>(Handler{"", std::move(handler)});
    sd_bus_slot* slot = nullptr;
    // The bus works in order, so the match is in place before any later call of ours.
    const int r = sd_bus_add_match_async(bus_.get(), &slot, match.c_str(), on_message, nullptr,
                                         userdata.get());
    if (r < 0) {
        return fail_errno(-r, "subscribe to a signal");
    }
    (void)userdata.release();
    float_slot(slot, drop_handler);
    return {};
}

Result<void> Bus::on_direct_signal(const std::string& member,
                                   std::function<void(const Signal&)> handler) {
    auto userdata = std::make_unique<Handler>(Handler{member, std::move(handler)});
    sd_bus_slot* slot = nullptr;
    if (const int r = sd_bus_add_filter(bus_.get(), &slot, on_message, userdata.get()); r < 0) {
        return fail_errno(-r, "subscribe to a signal");
    }
    (void)userdata.release();
    float_slot(slot, drop_handler);
    return {};
}

int Bus::fd() const {
    return sd_bus_get_fd(bus_.get());
}

short Bus::events() const {
    return static_cast<short>(std::max(0, sd_bus_get_events(bus_.get())));
}

int Bus::timeout_ms() const {
    std::uint64_t until = 0;
    if (sd_bus_get_timeout(bus_.get(), &until) <= 0 || until == UINT64_MAX) {
        return -1;
    }
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const std::uint64_t now_us = static_cast<std::uint64_t>(now.tv_sec) * 1000000 +
                                 static_cast<std::uint64_t>(now.tv_nsec) / 1000;
    return until <= now_us ? 0
                           : static_cast<int>(
                                 std::min<std::uint64_t>((until - now_us + 999) / 1000, INT32_MAX));
}

Result<void> Bus::process() {
    for (;;) {
        const int r = sd_bus_process(bus_.get(), nullptr);
        if (r < 0) {
            return fail_errno(-r, "the system bus has hung up", ErrorCode::unreachable);
        }
        if (r == 0) {
            return {};
        }
    }
}

Result<void> Bus::pump(std::chrono::microseconds limit) {
    const int r = sd_bus_process(bus_.get(), nullptr);
    if (r > 0) {
        return {};
    }
    if (r < 0) {
        return fail_errno(-r, "the system bus has hung up", ErrorCode::unreachable);
    }
    const int waited = sd_bus_wait(bus_.get(), limit == std::chrono::microseconds::max()
                                                   ? UINT64_MAX
                                                   : static_cast<std::uint64_t>(limit.count()));
    if (waited < 0 && waited != -EINTR) {
        return fail_errno(-waited, "wait for the system bus", ErrorCode::unreachable);
    }
    return {};
}

Result<Json> Bus::property(const Call& object, const std::string& name) {
    Call get = object;
    get.arguments = {std::string(object.interface), name};
    get.interface = "org.freedesktop.DBus.Properties";
    get.member = "Get";
    auto reply = call(get);
    if (!reply) {
        return fail(std::move(reply).error());
    }
    return reply->values.empty() ? Json() : reply->values[0];
}

Result<Json> Bus::properties(const Call& object) {
    Call get = object;
    get.arguments = {std::string(object.interface)};
    get.interface = "org.freedesktop.DBus.Properties";
    get.member = "GetAll";
    auto reply = call(get);
    if (!reply) {
        return fail(std::move(reply).error());
    }
    return reply->values.empty() ? Json::object() : reply->values[0];
}

std::string path_of_id(const std::string& id) {
    std::string path = std::string(kManagerPath) + "/sandbox/";
    for (const char c : id) {
        if (c == '-') {
            path += "_2d"; // sd_bus_path_encode(3); the rest of an id needs no escape
        } else {
            path += c;
        }
    }
    return path;
}

Result<std::string> sandbox_path(Bus& bus, const std::string& id_or_name) {
    if (is_sandbox_id(id_or_name)) {
        return path_of_id(id_or_name);
    }
    auto reply = bus.call({.member = "Get", .arguments = {id_or_name}});
    if (!reply) {
        return fail(std::move(reply).error());
    }
    if (reply->values.empty() || !reply->values[0].is_string()) {
        return fail(ErrorCode::internal, "workdird answered Get with something else than a path");
    }
    return reply->values[0].get<std::string>();
}

Error no_such_sandbox(Error error, const std::string& id_or_name) {
    if (error.message.find("org.freedesktop.DBus.Error.UnknownObject") != std::string::npos ||
        error.message.find("org.freedesktop.DBus.Error.UnknownMethod") != std::string::npos) {
        return Error{ErrorCode::not_found, 0,
                     fmt::format("no sandbox {}; wd ls shows those there are", quote(id_or_name))};
    }
    return error;
}

std::string text_of(const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::uint64_t number_of(const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && found->is_number_integer() ? found->get<std::uint64_t>() : 0;
}

} // namespace wd::cli
