#include "model/enums.hpp"

#include <array>
#include <utility>

namespace wd::model {
namespace {

template <class Enum>
struct Table;

template <>
struct Table<State> {
    static constexpr std::array rows{
        std::pair{State::creating, "creating"}, std::pair{State::running, "running"},
        std::pair{State::stopping, "stopping"}, std::pair{State::stopped, "stopped"},
        std::pair{State::starting, "starting"}, std::pair{State::parking, "parking"},
        std::pair{State::standby, "standby"},   std::pair{State::deleting, "deleting"},
        std::pair{State::failed, "failed"}};
};

template <>
struct Table<EndReason> {
    static constexpr std::array rows{std::pair{EndReason::none, "none"},
                                     std::pair{EndReason::deleted, "deleted"},
                                     std::pair{EndReason::stopped, "stopped"},
                                     std::pair{EndReason::oom, "oom"},
                                     std::pair{EndReason::pids, "pids"},
                                     std::pair{EndReason::disk, "disk"},
                                     std::pair{EndReason::timeout, "timeout"},
                                     std::pair{EndReason::signal, "signal"},
                                     std::pair{EndReason::policy, "policy"},
                                     std::pair{EndReason::vmm_crash, "vmm-crash"},
                                     std::pair{EndReason::host_pressure, "host-pressure"},
                                     std::pair{EndReason::agent_lost, "agent-lost"}};
};

template <>
struct Table<BootPath> {
    static constexpr std::array rows{std::pair{BootPath::cold_boot, "cold_boot"},
                                     std::pair{BootPath::snapshot_restore, "snapshot_restore"},
                                     std::pair{BootPath::wake, "wake"}};
};

template <>
struct Table<Accel> {
    static constexpr std::array rows{std::pair{Accel::kvm, "kvm"}, std::pair{Accel::tcg, "tcg"}};
};

template <>
struct Table<AccelChoice> {
    static constexpr std::array rows{std::pair{AccelChoice::automatic, "auto"},
                                     std::pair{AccelChoice::kvm, "kvm"},
                                     std::pair{AccelChoice::tcg, "tcg"}};
};

template <>
struct Table<Phase> {
    static constexpr std::array rows{
        std::pair{Phase::queue, "queue"},   std::pair{Phase::assign, "assign"},
        std::pair{Phase::unit, "unit"},     std::pair{Phase::vmm, "vmm"},
        std::pair{Phase::kernel, "kernel"}, std::pair{Phase::agent, "agent"},
        std::pair{Phase::ready, "ready"}};
};

} // namespace

template <class Enum>
std::string_view to_string(Enum value) {
    for (const auto& [candidate, name] : Table<Enum>::rows) {
        if (candidate == value) {
            return name;
        }
    }
    return "?";
}

template <class Enum>
std::optional<Enum> from_string(std::string_view text) {
    for (const auto& [value, name] : Table<Enum>::rows) {
        if (text == name) {
            return value;
        }
    }
    return std::nullopt;
}

template std::string_view to_string(State);
template std::string_view to_string(EndReason);
template std::string_view to_string(BootPath);
template std::string_view to_string(Accel);
template std::string_view to_string(AccelChoice);
template std::string_view to_string(Phase);
template std::optional<State> from_string(std::string_view);
template std::optional<EndReason> from_string(std::string_view);
template std::optional<BootPath> from_string(std::string_view);
template std::optional<Accel> from_string(std::string_view);
template std::optional<AccelChoice> from_string(std::string_view);
template std::optional<Phase> from_string(std::string_view);

bool is_live(State state) {
    switch (state) {
    case State::creating:
    case State::running:
    case State::stopping:
    case State::starting:
    case State::parking:
        return true;
    case State::stopped:
    case State::standby:
    case State::deleting:
    case State::failed:
        return false;
    }
    return false;
}

} // namespace wd::model
