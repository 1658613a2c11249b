#pragma once
// Who may call what: one table, method -> polkit action, deny by default. Root is always allowed;
// for everyone else polkit decides (policy/dev.workdir1.policy), and a sandbox of another user
// needs manage-all besides.

#include "bus/connection.hpp"
#include "util/result.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace wd::daemon {

enum class Action { manage_own, manage_all, images, configure };
std::string_view polkit_id(Action action); // dev.workdir1.manage-own, …

// nullopt: not in the table, so nobody may call it. A test walks the XML and fails on that.
std::optional<Action> action_of(std::string_view interface, std::string_view method);

class Authorizer {
public:
    static Result<std::unique_ptr<Authorizer>> create(bus::Connection& bus);

    // Asks polkit, without a dialog. Error: not_authorised with what to do about it.
    using Callback = std::function<void(Result<void>)>;
    void check(const bus::Sender& sender, Action action, Callback callback);

private:
    explicit Authorizer(std::unique_ptr<sdbus::IProxy> polkit) : polkit_(std::move(polkit)) {}
    std::unique_ptr<sdbus::IProxy> polkit_;
};

} // namespace wd::daemon
