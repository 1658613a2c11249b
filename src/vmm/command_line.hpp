#pragma once
// The QEMU command line of one sandbox: a pure function, so that tests can compare it word by word.
//
// QEMU gets everything it uses as an inherited file descriptor; no path in it belongs to a sandbox.

#include "model/enums.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace wd::vmm {

struct DiskFd {
    int fd = -1;
    bool qcow2 = false; // else raw
    bool read_only = true;
};

struct VmConfig {
    std::string qemu; // absolute path of the binary
    model::Accel accel = model::Accel::tcg;
    std::uint32_t cpus = 1;
    std::uint64_t memory_bytes = 0;
    std::uint64_t tsc_khz = 0; // of the host; for TCG only
    // Of memory_bytes, opened by way of src/ram/ram.cpp. Shared; or with `restore` mapped privately
    // and never written, while the machine waits for `migrate-incoming`.
    int memory_fd = -1;
    bool restore = false;
    int state_fd = -1; // where xen-save-devices-state writes; open for writing alone
    int kernel_fd = -1;
    int initrd_fd = -1;
    int qmp_fd = -1;            // connected stream sockets
    int agent_fd = -1;          //
    int console_fd = -1;        //
    std::vector<DiskFd> layers; // of the root disk, bottom first; empty: no disk
};

// Name of the virtio-serial port, as the guest sees it in /sys/class/virtio-ports/*/name.
inline constexpr const char* kAgentPort = "dev.workdir.agent";
// QMP id of that port, in VSERPORT_CHANGE events.
inline constexpr const char* kAgentPortId = "agent-port";

// QMP arguments of xen-save-devices-state and migrate-incoming. The first has its name from its
// first user: it saves every device but the memory, in any build of QEMU. The VM must be stopped.
std::string save_state_arguments();
std::string load_state_arguments(int state_fd);

// argv, with argv[0] = config.qemu.
std::vector<std::string> command_line(const VmConfig& config);

} // namespace wd::vmm
