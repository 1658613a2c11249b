#pragma once
// Who may call what: one table, method -> polkit action, deny by default. Root is always allowed;
// for everyone else polkit decides (policy/dev.workdir1.policy), and a sandbox of another user
// needs manage-all besides.

#include "bus/connection.hpp"
#include "util/result.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
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
    // A bounded number at a time, users in turn: the bus drops calls of a connection that waits for
    // too many replies, and one user's calls must not be in the way of another's.
    void check(const bus::Sender& sender, Action action, Callback callback);

private:
    struct Question {
        std::string sender;
        Action action;
        Callback callback;
    };

    explicit Authorizer(std::unique_ptr<sdbus::IProxy> polkit) : polkit_(std::move(polkit)) {}
    void pump();
    void ask(const Question& question);

    std::unique_ptr<sdbus::IProxy> polkit_;
    std::map<std::uint32_t, std::deque<Question>> waiting_; // by user; none is empty
    std::uint32_t last_user_ = 0;
    std::size_t open_ = 0;
};

} // namespace wd::daemon
