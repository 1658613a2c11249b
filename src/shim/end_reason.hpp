#pragma once
// Why the machine ended, from everything known when QEMU is gone. Pure.

#include "model/spec.hpp"
#include "shim/cgroup_events.hpp"

#include <optional>
#include <string>

#include <signal.h>

namespace wd::shim {

struct EndFacts {
    int code = 0;                     // si_code of QEMU's end: CLD_EXITED, CLD_KILLED, CLD_DUMPED
    int status = 0;                   // si_status: exit status or signal
    bool killed_by_shim = false;      // with SIGKILL
    std::optional<model::End> chosen; // what the shim ended it for
    std::string stop;                 // how a stop that was asked for went; empty: none was
    bool was_ready = false;
    std::string shutdown_reason;  // of QMP's SHUTDOWN event; empty: there was none
    std::string panic;            // what the guest kernel panicked of
    std::string last_stderr_line; // printable
    std::string channel_error;    // the first connection to QEMU that broke, and how
    CgroupEvents before;          // at launch
    CgroupEvents after;
};

model::End decide_end(const EndFacts& facts);

} // namespace wd::shim
