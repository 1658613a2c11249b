#include "shim/end_reason.hpp"

#include "util/size.hpp"

#include <cstring>

#include <fmt/format.h>

namespace wd::shim {
namespace {

using model::End;
using model::EndReason;

std::string how_it_ended(const EndFacts& facts) {
    std::string text;
    if (facts.code == CLD_EXITED) {
        text = fmt::format("QEMU exited with status {}", facts.status);
    } else {
        const char* const name = ::sigabbrev_np(facts.status);
        text = name != nullptr ? fmt::format("QEMU was killed by SIG{}", name)
                               : fmt::format("QEMU was killed by signal {}", facts.status);
    }
    if (!facts.last_stderr_line.empty()) {
        text += ": " + facts.last_stderr_line;
    }
    return text;
}

End out_of_memory(const EndFacts& facts) {
    End end{.limit = facts.after.memory_limit, .peak = facts.after.memory_peak};
    // An OOM kill that the unit's own limit did not cause was the machine's, or a slice's above.
    if (facts.after.limit_hits <= facts.before.limit_hits) {
        end.reason = EndReason::host_pressure;
        end.detail = "the kernel killed QEMU because the host, or the slice of the sandboxes, ran "
                     "out of memory";
        return end;
    }
    end.reason = EndReason::oom;
    end.detail = fmt::format("the unit exceeded its memory limit of {} and the kernel killed QEMU",
                             format_size(end.limit));
    return end;
}

bool signalled(const EndFacts& facts) {
    return facts.code != CLD_EXITED;
}

} // namespace

End decide_end(const EndFacts& facts) {
    const bool oom_killed = facts.after.oom_kills > facts.before.oom_kills;
    if (signalled(facts) && facts.status == SIGKILL && !facts.killed_by_shim && oom_killed) {
        return out_of_memory(facts);
    }
    if (facts.chosen) {
        return *facts.chosen;
    }
    // A limit on threads makes QEMU abort, or exit with an error, in the middle of something.
    if ((signalled(facts) || facts.status != 0) &&
        facts.after.pids_refused > facts.before.pids_refused) {
        return {.reason = EndReason::pids,
                .detail = fmt::format("the unit reached its limit of {} tasks; {}",
                                      facts.after.pids_limit, how_it_ended(facts)),
                .limit = facts.after.pids_limit,
                .peak = facts.after.pids_limit};
    }
    if (!facts.stop.empty() && (facts.killed_by_shim || !signalled(facts))) {
        return {.reason = EndReason::stopped, .detail = facts.stop};
    }
    if (signalled(facts) || facts.status != 0) {
        return {.reason = EndReason::vmm_crash, .detail = how_it_ended(facts)};
    }
    if (!facts.panic.empty()) {
        return {.reason = EndReason::agent_lost,
                .detail = fmt::format("guest kernel panic: {}", facts.panic)};
    }
    // Both are what -no-reboot makes of a guest that resets or powers off.
    if (facts.shutdown_reason == "guest-reset" || facts.shutdown_reason == "guest-shutdown") {
        if (facts.was_ready) {
            return {.reason = EndReason::stopped, .detail = "the guest shut itself down"};
        }
        return {.reason = EndReason::agent_lost,
                .detail = "the guest shut itself down before its agent was ready"};
    }
    if (!facts.channel_error.empty()) {
        return {.reason = EndReason::vmm_crash,
                .detail = fmt::format("QEMU exited by itself; {}", facts.channel_error)};
    }
    return {.reason = EndReason::vmm_crash, .detail = how_it_ended(facts)};
}

} // namespace wd::shim
