#pragma once
// Bus: wd's side of D-Bus. Plain sd-bus rather than sdbus-c++: one library less to load at each
// start, and replies are read by their own signature into JSON, so that a field which a newer
// workdird adds shows up by itself.
//
// Single-threaded. Errors carry the daemon's message; where there is no daemon or no bus, they are
// `unreachable` and say what to do.

#include "util/fd.hpp"
#include "util/result.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>
#include <systemd/sd-bus.h>

namespace wd::cli {

using Json = nlohmann::ordered_json;

inline constexpr const char* kBusName = "dev.workdir1";
inline constexpr const char* kManagerPath = "/dev/workdir1";
inline constexpr const char* kManager = "dev.workdir1.Manager";
inline constexpr const char* kSandbox = "dev.workdir1.Sandbox";
inline constexpr const char* kJob = "dev.workdir1.Job";

// An a{sv} to send.
class Options {
public:
    using Value = std::variant<bool, std::uint32_t, std::uint64_t, std::string,
                               std::vector<std::string>, std::map<std::string, std::string>>;
    Options& add(std::string key, Value value) {
        entries_.emplace_back(std::move(key), std::move(value));
        return *this;
    }
    const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }

private:
    std::vector<std::pair<std::string, Value>> entries_;
};

using Argument = std::variant<std::string, bool, std::vector<std::string>, Options>;

struct Call {
    std::string path = kManagerPath;
    const char* interface = kManager;
    const char* member = "";
    std::vector<Argument> arguments = {};
    // Long by default: polkit may be asking a person for a password. Zero: for ever.
    std::chrono::seconds timeout{120};
    const char* destination = kBusName;
};

struct Reply {
    Json values = Json::array(); // one a return value; an `h` is its index in fds
    std::vector<Fd> fds;
};

struct Signal {
    std::string path;
    std::string member;
    Json values;
};

class Bus {
public:
    // DBUS_SYSTEM_BUS_ADDRESS is honoured (sd_bus_open_system(3)).
    static Result<Bus> open();

    using Done = std::function<void(Result<Reply>)>;
    // The callback runs inside process(), or at once when the call cannot be sent.
    void start(const Call& call, Done done);
    // start() and pump() until it is done; signal handlers run meanwhile.
    Result<Reply> call(const Call& call);

    // `match` as in sd_bus_add_match(3). Signals that arrive after this call are seen.
    Result<void> on_signal(const std::string& match, std::function<void(const Signal&)> handler);
    // Signals that are sent to us alone need no match at the bus, and so no round trip.
    Result<void> on_direct_signal(const std::string& member,
                                  std::function<void(const Signal&)> handler);

    // For a loop of the caller's: poll fd() for events() until deadline, then process().
    int fd() const;
    short events() const;
    int timeout_ms() const; // -1: none
    // Handles all that is there. Error: the bus has hung up.
    Result<void> process();
    // process(), and waits for more where there was nothing; at most `limit`.
    Result<void> pump(std::chrono::microseconds limit = std::chrono::microseconds::max());

    Result<Json> property(const Call& object, const std::string& name);
    Result<Json> properties(const Call& object);

private:
    struct Close {
        void operator()(sd_bus* bus) const noexcept { sd_bus_flush_close_unref(bus); }
    };
    explicit Bus(sd_bus* bus) : bus_(bus) {}
    std::unique_ptr<sd_bus, Close> bus_;
};

// The object of a sandbox. An id needs no question to the daemon, a name one; a path of an id that
// does not exist makes the following call fail, see no_such_sandbox().
Result<std::string> sandbox_path(Bus& bus, const std::string& id_or_name);
std::string path_of_id(const std::string& id);
// Puts the id in place of the bus's text about a missing object.
Error no_such_sandbox(Error error, const std::string& id_or_name);

// Fields of what the daemon sent; a default where one is missing or of another type.
std::string text_of(const Json& object, const char* key);
std::uint64_t number_of(const Json& object, const char* key);

} // namespace wd::cli
