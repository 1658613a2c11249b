#include "daemon/authz.hpp"

#include "bus/error.hpp"

#include <fmt/format.h>

namespace wd::daemon {
namespace {

struct Row {
    std::string_view interface;
    std::string_view method;
    Action action;
};

constexpr std::string_view kManager = "dev.workdir1.Manager";
constexpr std::string_view kSandbox = "dev.workdir1.Sandbox";
constexpr std::string_view kJob = "dev.workdir1.Job";

constexpr Row kTable[] = {
    {kManager, "Create", Action::manage_own},       {kManager, "Get", Action::manage_own},
    {kManager, "List", Action::manage_own},         {kManager, "ListImages", Action::manage_own},
    {kManager, "InspectImage", Action::manage_own}, {kManager, "BuildImage", Action::images},
    {kManager, "RemoveImage", Action::images},      {kManager, "Doctor", Action::manage_own},
    {kSandbox, "Exec", Action::manage_own},         {kSandbox, "Stop", Action::manage_own},
    {kSandbox, "Standby", Action::manage_own},      {kSandbox, "Start", Action::manage_own},
    {kSandbox, "Remove", Action::manage_own},       {kSandbox, "Inspect", Action::manage_own},
    {kSandbox, "OpenConsole", Action::manage_own},  {kJob, "Cancel", Action::images},
};

// An agent that asks a person may take its time; without one polkit answers at once.
constexpr std::uint64_t kPolkitTimeoutUs = 30'000'000;
// A quarter of dbus-daemon's max_replies_per_connection; PID 1 is asked over the same connection.
constexpr std::size_t kMostOpen = 32;

std::string refusal(Action action) {
    std::string message = fmt::format("not authorised ({})", polkit_id(action));
    if (action == Action::manage_own) {
        message += "; members of the group workdir are: adduser USER workdir, then log in again";
    } else {
        message += "; run it as root, or add a polkit rule";
    }
    return message;
}

} // namespace

std::string_view polkit_id(Action action) {
    switch (action) {
    case Action::manage_own:
        return "dev.workdir1.manage-own";
    case Action::manage_all:
        return "dev.workdir1.manage-all";
    case Action::images:
        return "dev.workdir1.images";
    case Action::configure:
        return "dev.workdir1.configure";
    }
    return "";
}

std::optional<Action> action_of(std::string_view interface, std::string_view method) {
    for (const Row& row : kTable) {
        if (row.interface == interface && row.method == method) {
            return row.action;
        }
    }
    return std::nullopt;
}

Result<std::unique_ptr<Authorizer>> Authorizer::create(bus::Connection& bus) {
    return bus::attempt([&] {
        return std::unique_ptr<Authorizer>(new Authorizer(bus::make_proxy(
            bus.get(), "org.freedesktop.PolicyKit1", "/org/freedesktop/PolicyKit1/Authority")));
    });
}

void Authorizer::check(const bus::Sender& sender, Action action, Callback callback) {
    if (sender.uid == 0) {
        callback({});
        return;
    }
    waiting_[sender.uid].push_back({sender.name, action, std::move(callback)});
    pump();
}

void Authorizer::pump() {
    while (open_ < kMostOpen && !waiting_.empty()) {
        auto at = waiting_.upper_bound(last_user_);
        if (at == waiting_.end()) {
            at = waiting_.begin();
        }
        last_user_ = at->first;
        const Question question = std::move(at->second.front());
        at->second.pop_front();
        if (at->second.empty()) {
            waiting_.erase(at);
        }
        ++open_;
        ask(question);
    }
}

void Authorizer::ask(const Question& question) {
    const auto on_answer = [this, action = question.action, callback = question.callback](
                               sdbus::MethodReply* reply, const sdbus::Error* error) {
        --open_;
        bus::guarded([&] {
            if (error != nullptr) {
                callback(fail(ErrorCode::not_authorised,
                              fmt::format("polkit cannot be asked ({}); is the package polkitd "
                                          "installed?",
                                          error->getMessage())));
                return;
            }
            // (bba{ss}): authorised, challenge, details
            sdbus::Struct<bool, bool, std::map<std::string, std::string>> answer;
            *reply >> answer;
            if (std::get<0>(answer)) {
                callback({});
            } else {
                callback(fail(ErrorCode::not_authorised, refusal(action)));
            }
        });
        pump();
    };
    auto sent = bus::attempt([&] {
        auto message =
            bus::make_call(*polkit_, "org.freedesktop.PolicyKit1.Authority", "CheckAuthorization");
        const sdbus::Struct<std::string, std::map<std::string, sdbus::Variant>> subject(
            "system-bus-name",
            std::map<std::string, sdbus::Variant>{{"name", sdbus::Variant(question.sender)}});
        message << subject << std::string(polkit_id(question.action))
                << std::map<std::string, std::string>{} << std::uint32_t{0} << std::string();
        bus::call_async(*polkit_, message, kPolkitTimeoutUs, on_answer);
    });
    if (!sent) {
        --open_;
        question.callback(fail(ErrorCode::not_authorised, sent.error().message));
    }
}

} // namespace wd::daemon
