#include "pid1/units.hpp"

#include "bus/connection.hpp"
#include "bus/error.hpp"
#include "event/sources.hpp"
#include "util/log.hpp"

#include <fmt/format.h>
#include <systemd/sd-bus.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

namespace wd::pid1 {
namespace {

constexpr const char* kService = "org.freedesktop.systemd1";
constexpr const char* kManagerPath = "/org/freedesktop/systemd1";
constexpr const char* kManager = "org.freedesktop.systemd1.Manager";
constexpr const char* kProperties = "org.freedesktop.DBus.Properties";
constexpr const char* kNoSuchUnit = "org.freedesktop.systemd1.NoSuchUnit";
// PID 1 answers at once or is in trouble (a daemon-reload on a large host takes seconds).
constexpr std::uint64_t kCallTimeoutUs = 60'000'000;

struct ToVariant {
    template <class T>
    sdbus::Variant operator()(const T& v) const {
        return sdbus::Variant(v);
    }
    sdbus::Variant operator()(const NameList& v) const {
        return sdbus::Variant(sdbus::Struct<bool, std::vector<std::string>>(v.allow, v.names));
    }
    sdbus::Variant operator()(const DeviceRules& v) const {
        std::vector<sdbus::Struct<std::string, std::string>> out;
        for (const auto& [path, access] : v.rules) {
            out.emplace_back(path, access);
        }
        return sdbus::Variant(out);
    }
    sdbus::Variant operator()(const Command& v) const {
        std::vector<sdbus::Struct<std::string, std::vector<std::string>, bool>> out;
        out.emplace_back(v.argv.at(0), v.argv, v.ignore_failure);
        return sdbus::Variant(out);
    }
    sdbus::Variant operator()(const PathPairs& v) const {
        std::vector<sdbus::Struct<std::string, std::string, bool, std::uint64_t>> out;
        for (const auto& [from, to] : v.paths) {
            out.emplace_back(from, to, false, std::uint64_t{0});
        }
        return sdbus::Variant(out);
    }
    sdbus::Variant operator()(const BorrowedFd& v) const {
        return sdbus::Variant(sdbus::UnixFd(v.fd)); // a duplicate, closed with the message
    }
};

std::string hex(const std::vector<std::uint8_t>& bytes) {
    std::string out;
    for (const std::uint8_t byte : bytes) {
        out += fmt::format("{:02x}", byte);
    }
    return out;
}

template <class T>
void read_property(const std::map<std::string, sdbus::Variant>& all, const char* key, T& out) {
    const auto at = all.find(key);
    if (at != all.end() && bus::value_type(at->second) == bus::signature<T>()) {
        out = at->second.get<T>();
    }
}

bool is_no_such_unit(const Error& error) {
    return error.message.find("NoSuchUnit") != std::string::npos ||
           error.code == ErrorCode::not_found;
}

} // namespace

std::string unit_path(const std::string& name) {
    char* path = nullptr;
    if (sd_bus_path_encode("/org/freedesktop/systemd1/unit", name.c_str(), &path) < 0) {
        return {};
    }
    std::string out(path);
    std::free(path);
    return out;
}

struct Units::Impl {
    using Reply = std::function<void(Result<sdbus::MethodReply>)>;

    Impl(const event::Loop& l, bus::Connection& b) : loop(l), bus(b) {}
    void on_changed(const std::string& path);
    void on_job_removed(const std::string& job, const std::string& result);
    void call(sdbus::IProxy& proxy, const sdbus::MethodCall& message, const Reply& reply);
    void call_with_name(const char* method, const std::string& name,
                        const std::vector<std::string>& more, Done callback);
    void bury(std::uint64_t query);

    const event::Loop& loop;
    bus::Connection& bus;
    std::unique_ptr<sdbus::IProxy> manager;
    sdbus::Slot job_removed;
    sdbus::Slot changed;
    using Watchers = std::multimap<std::string, std::shared_ptr<std::function<void()>>>;
    std::shared_ptr<Watchers> watchers = std::make_shared<Watchers>(); // by object path
    std::map<std::string, Started> waiting;                            // by job path
    // A proxy must not be destroyed by the handler of its own reply, so queries that have been
    // answered are dropped in the next iteration of the loop.
    std::map<std::uint64_t, std::unique_ptr<sdbus::IProxy>> queries;
    std::vector<std::uint64_t> buried;
    std::uint64_t next_query = 0;
    event::Defer burial;
};

Units::Units(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Units::~Units() = default;

Result<std::unique_ptr<Units>> Units::create(const event::Loop& loop, bus::Connection& bus) {
    auto impl = std::make_unique<Impl>(loop, bus);
    auto done = bus::attempt([&] {
        impl->manager = bus::make_proxy(bus.get(), kService, kManagerPath);
        // One for all units: a connection may have 512 matches.
        impl->changed = bus::add_match(
            bus.get(),
            fmt::format("type='signal',sender='{}',path_namespace='{}/unit',interface='{}',"
                        "member='PropertiesChanged'",
                        kService, kManagerPath, kProperties),
            [self = impl.get()](sdbus::Message& message) {
                self->on_changed(bus::path_of(message));
            });
        impl->job_removed = bus::add_match(
            bus.get(),
            fmt::format("type='signal',sender='{}',path='{}',interface='{}',member='JobRemoved'",
                        kService, kManagerPath, kManager),
            [self = impl.get()](sdbus::Message& message) {
                bus::guarded([&] {
                    std::uint32_t id = 0;
                    sdbus::ObjectPath job;
                    std::string unit;
                    std::string result;
                    message >> id >> job >> unit >> result;
                    self->on_job_removed(job, result);
                });
            });
        // Without a subscriber PID 1 sends no unit signals: org.freedesktop.systemd1(5).
        impl->manager->callMethod("Subscribe").onInterface(kManager);
    });
    if (!done) {
        return fail(std::move(done.error()).context("PID 1 (systemd)"));
    }
    return std::unique_ptr<Units>(new Units(std::move(impl)));
}

void Units::Impl::call(sdbus::IProxy& proxy, const sdbus::MethodCall& message, const Reply& reply) {
    const auto on_answer = [reply](sdbus::MethodReply* answer, const sdbus::Error* error) {
        bus::guarded([&] {
            if (error != nullptr) {
                reply(fail(bus::from_sdbus(*error)));
            } else {
                reply(std::move(*answer));
            }
        });
    };
    auto sent = bus::attempt([&] { bus::call_async(proxy, message, kCallTimeoutUs, on_answer); });
    if (!sent) {
        reply(fail(std::move(sent).error()));
    }
}

void Units::Impl::on_job_removed(const std::string& job, const std::string& result) {
    const auto node = waiting.extract(job);
    if (node.empty()) {
        return;
    }
    if (result == "done") {
        node.mapped()({});
    } else {
        node.mapped()(fail(ErrorCode::start_failed, fmt::format("systemd says \"{}\"", result)));
    }
}

void Units::start_transient(const std::string& name, const std::vector<Property>& properties,
                            Started callback) {
    auto message = bus::attempt([&] {
        auto m = bus::make_call(*impl_->manager, kManager, "StartTransientUnit");
        std::vector<sdbus::Struct<std::string, sdbus::Variant>> list;
        for (const Property& property : properties) {
            list.emplace_back(property.name, std::visit(ToVariant{}, property.value));
        }
        std::vector<
            sdbus::Struct<std::string, std::vector<sdbus::Struct<std::string, sdbus::Variant>>>>
            auxiliary;
        m << name << std::string("fail") << list << auxiliary;
        return m;
    });
    if (!message) {
        callback(fail(std::move(message).error()));
        return;
    }
    impl_->call(*impl_->manager, *message,
                [this, name, callback = std::move(callback)](Result<sdbus::MethodReply> reply) {
                    if (!reply) {
                        callback(fail(ErrorCode::start_failed,
                                      fmt::format("start {}: {}", name, reply.error().message)));
                        return;
                    }
                    auto job = bus::attempt([&] {
                        sdbus::ObjectPath path;
                        *reply >> path;
                        return std::string(path);
                    });
                    if (!job) {
                        callback(fail(std::move(job).error()));
                        return;
                    }
                    impl_->waiting.emplace(*job, [name, callback](Result<void> result) {
                        callback(result ? std::move(result)
                                        : fail(std::move(result.error()).context("start " + name)));
                    });
                });
}

void Units::Impl::call_with_name(const char* method, const std::string& name,
                                 const std::vector<std::string>& more, Done callback) {
    auto message = bus::attempt([&] {
        auto m = bus::make_call(*manager, kManager, method);
        m << name;
        for (const std::string& argument : more) {
            m << argument;
        }
        return m;
    });
    if (!message) {
        callback(fail(std::move(message).error()));
        return;
    }
    call(*manager, *message, [callback = std::move(callback)](Result<sdbus::MethodReply> reply) {
        if (!reply && !is_no_such_unit(reply.error())) {
            callback(fail(std::move(reply).error()));
        } else {
            callback({});
        }
    });
}

void Units::stop(const std::string& name, Done callback) {
    impl_->call_with_name("StopUnit", name, {"replace"}, std::move(callback));
}

void Units::kill(const std::string& name, Done callback) {
    auto message = bus::attempt([&] {
        auto m = bus::make_call(*impl_->manager, kManager, "KillUnit");
        m << name << std::string("all") << std::int32_t{9};
        return m;
    });
    if (!message) {
        callback(fail(std::move(message).error()));
        return;
    }
    // "No main or control process to kill" is a unit whose processes have just gone: success too.
    impl_->call(*impl_->manager, *message,
                [callback = std::move(callback)](Result<sdbus::MethodReply> reply) {
                    if (!reply && !is_no_such_unit(reply.error()) &&
                        reply.error().message.find("NoSuchProcess") == std::string::npos) {
                        callback(fail(std::move(reply).error()));
                    } else {
                        callback({});
                    }
                });
}

void Units::reset_failed(const std::string& name, Done callback) {
    impl_->call_with_name("ResetFailedUnit", name, {}, std::move(callback));
}

namespace {

Result<UnitState> read_state(const std::string& name, Result<sdbus::MethodReply>& reply) {
    UnitState state{.name = name, .active_state = "inactive"};
    if (!reply) {
        if (is_no_such_unit(reply.error())) {
            return state;
        }
        return fail(std::move(reply).error());
    }
    auto read = bus::attempt([&] {
        std::map<std::string, sdbus::Variant> all;
        *reply >> all;
        std::vector<std::uint8_t> invocation;
        read_property(all, "ActiveState", state.active_state);
        read_property(all, "Result", state.result);
        read_property(all, "StatusText", state.status_text);
        read_property(all, "ExecMainCode", state.main_code);
        read_property(all, "ExecMainStatus", state.main_status);
        read_property(all, "MainPID", state.main_pid);
        read_property(all, "InvocationID", invocation);
        state.invocation_id = hex(invocation);
    });
    if (!read) {
        return fail(std::move(read).error());
    }
    return state;
}

} // namespace

void Units::query(const std::string& name, std::function<void(Result<UnitState>)> callback) {
    const std::uint64_t query = impl_->next_query++;
    auto message = bus::attempt([&] {
        auto& proxy = impl_->queries[query] =
            bus::make_proxy(impl_->bus.get(), kService, unit_path(name));
        auto m = bus::make_call(*proxy, kProperties, "GetAll");
        m << std::string(); // all interfaces: Unit and Service in one reply
        return m;
    });
    if (!message) {
        impl_->queries.erase(query);
        callback(fail(std::move(message).error()));
        return;
    }
    impl_->call(
        *impl_->queries[query], *message,
        [this, query, name, callback = std::move(callback)](Result<sdbus::MethodReply> reply) {
            impl_->bury(query);
            callback(read_state(name, reply));
        });
}

void Units::Impl::bury(std::uint64_t query) {
    buried.push_back(query);
    auto defer = event::Defer::create(loop, [this] {
        for (const std::uint64_t dead : buried) {
            queries.erase(dead);
        }
        buried.clear();
    });
    if (defer) {
        burial = std::move(*defer);
    }
}

void Units::list(const std::string& pattern,
                 std::function<void(Result<std::vector<std::string>>)> callback) {
    auto message = bus::attempt([&] {
        auto m = bus::make_call(*impl_->manager, kManager, "ListUnitsByPatterns");
        m << std::vector<std::string>{} << std::vector<std::string>{pattern};
        return m;
    });
    if (!message) {
        callback(fail(std::move(message).error()));
        return;
    }
    impl_->call(*impl_->manager, *message,
                [callback = std::move(callback)](Result<sdbus::MethodReply> reply) {
                    if (!reply) {
                        callback(fail(std::move(reply).error()));
                        return;
                    }
                    callback(bus::attempt([&] {
                        using Entry =
                            sdbus::Struct<std::string, std::string, std::string, std::string,
                                          std::string, std::string, sdbus::ObjectPath,
                                          std::uint32_t, std::string, sdbus::ObjectPath>;
                        std::vector<Entry> entries;
                        *reply >> entries;
                        std::vector<std::string> names;
                        for (const Entry& entry : entries) {
                            names.push_back(std::get<0>(entry));
                        }
                        return names;
                    }));
                });
}

Units::Watch Units::watch(const std::string& name, std::function<void()> changed) {
    const auto entry = impl_->watchers->emplace(
        unit_path(name), std::make_shared<std::function<void()>>(std::move(changed)));
    const auto forget = [entry, watchers = std::weak_ptr(impl_->watchers)](void*) {
        if (const auto live = watchers.lock()) {
            live->erase(entry);
        }
    };
    return Watch(entry->second.get(), forget);
}

void Units::Impl::on_changed(const std::string& path) {
    const auto [begin, end] = watchers->equal_range(path);
    std::vector<std::shared_ptr<std::function<void()>>> called;
    for (auto at = begin; at != end; ++at) {
        called.push_back(at->second);
    }
    for (const auto& callback : called) {
        const auto [from, to] = watchers->equal_range(path); // less what the others have dropped
        if (std::any_of(from, to, [&](const auto& entry) { return entry.second == callback; })) {
            bus::guarded(*callback);
        }
    }
}

} // namespace wd::pid1
