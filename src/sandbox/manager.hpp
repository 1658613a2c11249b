#pragma once
// Manager: all sandboxes of this host. Admission, names, and the order after a restart.

#include "sandbox/sandbox.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace wd::sandbox {

class Manager {
public:
    struct Observer { // for the D-Bus objects
        std::function<void(Sandbox&)> added;
        std::function<void(Sandbox&)> changed;
        std::function<void(const std::string& id)> removed;
    };
    Manager(Context context, Observer observer);

    // Checks, admits and begins a create. Returns the id at once; `done` comes when it is ready, or
    // with what went wrong when nothing is left of it.
    using Created = std::function<void(Result<Sandbox*>)>;
    Result<std::string> create(model::SandboxSpec spec, std::uint32_t owner_uid,
                               std::function<void(const std::string& id, model::Phase)> on_phase,
                               Created done);
    // Of one that is stopped, failed or in standby. Error at once: wrong_state, limit, disk_full.
    void start(Sandbox& sandbox, Sandbox::Done done);

    // Exactly this id or exactly this name. Error: not_found.
    Result<Sandbox*> find(std::string_view id_or_name);
    Sandbox* find_id(const std::string& id);
    std::vector<Sandbox*> list(); // by creation

    // Ids of sandboxes, in any state, whose disk rests on this image version.
    std::vector<std::string> users_of_image(const std::string& name,
                                            const std::string& version) const;

    // Once, before the bus name is taken: brings the store, PID 1 and the disk into agreement.
    // Sandboxes that run are adopted, what ended is recorded, what belongs to nobody is removed.
    void reconcile(std::function<void(Result<void>)> done);

private:
    struct Reconcile;
    Sandbox& add(store::SandboxRow row);
    Result<void> admit(const model::SandboxSpec& spec, std::uint32_t owner_uid, bool new_one);
    void remove_unit(const pid1::UnitState& state);
    void settle(const std::shared_ptr<Reconcile>& work, const std::string& unit,
                const Result<pid1::UnitState>& state);
    void ask(const std::shared_ptr<Reconcile>& work);
    void finish_reconcile(const std::shared_ptr<Reconcile>& work);
    void sweep();

    Context context_;
    Observer observer_;
    std::map<std::string, std::unique_ptr<Sandbox>> sandboxes_;
    std::map<std::string, std::unique_ptr<Machine>> strays_; // units that are being ended
    event::Defer burial_;
    std::vector<std::unique_ptr<Sandbox>> buried_;
};

} // namespace wd::sandbox
