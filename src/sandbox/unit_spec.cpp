#include "sandbox/unit_spec.hpp"

#include "util/size.hpp"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>
#include <linux/capability.h>
#include <sched.h>

namespace wd::sandbox {
namespace {

using pid1::kInfinity;
using Properties = std::vector<pid1::Property>;
using Names = std::vector<std::string>;

constexpr std::uint64_t kSecondUs = 1'000'000;
constexpr std::uint64_t kLayerOverheadBytes = 16 * kMiB;

constexpr std::uint64_t capability(int number) {
    return std::uint64_t{1} << number;
}
// What a package installation into a folder needs. CHOWN, FOWNER, DAC_OVERRIDE: files of many
// owners and their removal; FSETID, SETFCAP: setgid bits and file capabilities; SETUID, SETGID:
// apt's download user and maintainer scripts; SYS_ADMIN: proc, sys and dev in the tree; SYS_CHROOT:
// chroot.
constexpr std::uint64_t kBuilderCapabilities =
    capability(CAP_CHOWN) | capability(CAP_DAC_OVERRIDE) | capability(CAP_FOWNER) |
    capability(CAP_FSETID) | capability(CAP_SETFCAP) | capability(CAP_SETGID) |
    capability(CAP_SETUID) | capability(CAP_SYS_ADMIN) | capability(CAP_SYS_CHROOT);

// What holds for both kinds of unit: nothing here is needed by a VMM or by a package installation.
void add_common(Properties& p) {
    p.push_back({"Slice", std::string("workdir.slice")});
    p.push_back({"NoNewPrivileges", true});
    p.push_back({"ProtectClock", true});
    p.push_back({"ProtectHostname", true});
    p.push_back({"ProtectKernelLogs", true});
    p.push_back({"ProtectKernelModules", true});
    p.push_back({"ProtectKernelTunables", true});
    p.push_back({"ProtectControlGroups", true});
    p.push_back({"ProtectHome", std::string("yes")});
    p.push_back({"ProtectSystem", std::string("strict")});
    p.push_back({"PrivateTmp", true});
    p.push_back({"RestrictRealtime", true});
    p.push_back({"LockPersonality", true});
    p.push_back({"KeyringMode", std::string("private")});
    p.push_back({"SystemCallArchitectures", Names{"native"}});
    p.push_back({"LimitCORE", std::uint64_t{0}});
}

void add_confinement(Properties& p, model::Accel accel) {
    p.push_back({"DynamicUser", true});
    p.push_back({"CapabilityBoundingSet", std::uint64_t{0}});
    p.push_back({"AmbientCapabilities", std::uint64_t{0}});
    p.push_back({"PrivateIPC", true});
    p.push_back({"PrivateNetwork", true});
    p.push_back({"PrivateUsers", true});
    p.push_back({"ProtectProc", std::string("invisible")});
    p.push_back({"ProcSubset", std::string("pid")});
    p.push_back({"RestrictNamespaces", std::uint64_t{0}}); // 0: none may be made or joined
    p.push_back({"RestrictSUIDSGID", true});
    p.push_back({"RemoveIPC", true});
    p.push_back({"UMask", std::uint32_t{0077}});
    p.push_back({"RestrictAddressFamilies", pid1::NameList{true, {"AF_UNIX"}}});
    // Not @aio: io_uring makes sockets and opens files past every filter, and QEMU's disks use
    // threads. seccomp and set_mempolicy: QEMU's own -sandbox and libnuma call them at start.
    p.push_back({"SystemCallFilter",
                 pid1::NameList{true, {"@system-service", "seccomp", "set_mempolicy"}}});
    p.push_back({"SystemCallFilter", pid1::NameList{false, {"@privileged", "@resources", "@aio"}}});
    p.push_back({"SystemCallFilter", pid1::NameList{true, {"set_mempolicy"}}});
    // What is not allowed fails with EPERM, so that a library may fall back, instead of a kill.
    p.push_back({"SystemCallErrorNumber", std::int32_t{EPERM}});
    // TCG writes the code it runs; under KVM nobody needs memory that is writable and executable.
    p.push_back({"MemoryDenyWriteExecute", accel == model::Accel::kvm});
    p.push_back({"DevicePolicy", std::string("closed")});
    if (accel == model::Accel::kvm) {
        p.push_back({"DeviceAllow", pid1::DeviceRules{{{"/dev/kvm", "rw"}}}});
        p.push_back({"SupplementaryGroups", Names{"kvm"}}); // Debian: crw-rw---- root kvm
        p.push_back({"PrivateDevices", true});
        p.push_back({"BindPaths", pid1::PathPairs{{{"/dev/kvm", "/dev/kvm"}}}});
    } else {
        p.push_back({"PrivateDevices", true});
    }
    // QEMU needs no temporary file, and what it wrote would lie on the host's disk.
    p.push_back({"ReadOnlyPaths", Names{"/tmp", "/var/tmp"}});
    // Nothing of the host's state or of its services can be reached, readable or not.
    p.push_back({"InaccessiblePaths", Names{"-/var/lib/workdir", "-/etc/workdir", "-/run/workdir",
                                            "-/run/dbus", "-/var/log", "-/boot", "-/srv", "-/mnt",
                                            "-/media", "-/dev/shm", "-/dev/mqueue"}});
}

void add_limits(Properties& p, const VmmUnit& unit) {
    p.push_back({"MemoryMax", unit.memory_bytes + model::kMemoryOverheadBytes});
    p.push_back({"MemorySwapMax", std::uint64_t{0}});
    // One more CPU than the guest has would let QEMU's own threads compete with other sandboxes;
    // the guest's share is what was asked for, and the VMM works within it.
    p.push_back({"CPUQuotaPerSecUSec", unit.cpus * kSecondUs});
    p.push_back({"TasksMax", std::uint64_t{unit.tasks_max}});
    p.push_back({"IOWeight", std::uint64_t{100}});
    p.push_back({"OOMPolicy", std::string("stop")});
    p.push_back({"MemoryAccounting", true});
    p.push_back({"CPUAccounting", true});
    p.push_back({"TasksAccounting", true});
    // A layer has 8 bytes for each cluster of 64 KiB beside the data, and some tables. QEMU in the
    // wrong hands could else make the file of its disk as large as the host's.
    p.push_back({"LimitFSIZE",
                 std::max(unit.disk_bytes, unit.memory_bytes) / 1024 * 1025 + kLayerOverheadBytes});
    p.push_back({"LogRateLimitIntervalUSec", 30 * kSecondUs});
    p.push_back({"LogRateLimitBurst", std::uint32_t{200}});
}

} // namespace

Properties vmm_unit_properties(const VmmUnit& unit) {
    Properties p;
    p.push_back({"Description", unit.description});
    p.push_back({"Type", std::string("notify")});
    p.push_back({"NotifyAccess", std::string("main")});
    p.push_back({"ExecStart", pid1::Command{{unit.shim}}});
    p.push_back({"StandardInputFileDescriptor", pid1::BorrowedFd{unit.control_socket}});
    // For the shim's log. LogExtraFields= would do the same for all output, but systemd 252 leaves
    // a file in /run/systemd/units behind for each such unit, for ever.
    p.push_back({"Environment", Names{"WORKDIR_SANDBOX=" + unit.id}});
    p.push_back({"SyslogIdentifier", std::string("workdir-shim")});
    // The shim is told to end in order; whoever is left after that is killed.
    p.push_back({"KillMode", std::string("mixed")});
    p.push_back({"TimeoutStartUSec", 30 * kSecondUs});
    p.push_back({"TimeoutStopUSec", 15 * kSecondUs});
    add_common(p);
    add_confinement(p, unit.accel);
    add_limits(p, unit);
    return p;
}

Properties image_build_properties(const ImageBuildUnit& unit) {
    Properties p;
    p.push_back({"Description", unit.description});
    p.push_back({"Type", std::string("exec")});
    p.push_back({"NotifyAccess", std::string("all")}); // STATUS= is the progress of the job
    p.push_back({"ExecStart", pid1::Command{{unit.builder, "--recipe", unit.recipe, "--images-dir",
                                             unit.images_dir, "--name", unit.name, "--version",
                                             unit.version, "--staging", unit.staging}}});
    p.push_back({"ExecStopPost",
                 pid1::Command{{"/bin/rm", "-rf", "--one-file-system", "--", unit.staging}}});
    p.push_back({"KillMode", std::string("control-group")});
    p.push_back({"TimeoutStopUSec", 20 * kSecondUs});
    p.push_back({"SyslogIdentifier", std::string("workdir-image-build")});
    add_common(p);
    p.push_back({"ReadWritePaths", Names{unit.images_dir}});
    p.push_back({"PrivateDevices", true});
    p.push_back({"PrivateIPC", true});
    p.push_back({"ProtectProc", std::string("invisible")});
    p.push_back({"MemoryDenyWriteExecute", true});
    p.push_back({"RestrictNamespaces", std::uint64_t{CLONE_NEWNS}}); // unshare --mount
    p.push_back({"RestrictAddressFamilies",
                 pid1::NameList{true, {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}}});
    p.push_back({"SystemCallFilter", pid1::NameList{true, {"@system-service", "@mount"}}});
    p.push_back({"SystemCallErrorNumber", std::int32_t{EPERM}});
    p.push_back({"CapabilityBoundingSet", kBuilderCapabilities});
    p.push_back({"TasksMax", std::uint64_t{256}});
    p.push_back({"MemoryMax", 2 * kGiB});
    p.push_back({"CPUWeight", std::uint64_t{50}});
    p.push_back({"IOWeight", std::uint64_t{50}});
    return p;
}

} // namespace wd::sandbox
