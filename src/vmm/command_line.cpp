#include "vmm/command_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace wd::vmm {
namespace {

using Json = nlohmann::ordered_json;

// Cache of translated code under TCG, MiB. QEMU's own default is 1 GiB, which would have to be part
// of every unit's MemoryMax; a Debian userland with a compiler at work stays below this most of the
// time, and a full cache is flushed, not an error.
constexpr int kTcgCacheMiB = 64;

constexpr int kStateSet = 100; // fdset, clear of those of the disk layers

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kGuestHz = 250; // CONFIG_HZ in images/kernel/config

// Whole MiB as "512M", anything else in bytes.
std::string size_argument(std::uint64_t bytes) {
    return bytes % kMiB == 0 ? fmt::format("{}M", bytes / kMiB) : fmt::format("{}B", bytes);
}

std::string accelerator(const VmConfig& config) {
    if (config.accel == model::Accel::kvm) {
        return "kvm";
    }
    return fmt::format("tcg,tb-size={},thread={}", kTcgCacheMiB,
                       config.cpus > 1 ? "multi" : "single");
}

// Linux asks a KVM guest's host for the time (kvm-clock), and reads no CMOS clock then. Under TCG
// it does: without one it waits about a second for it.
std::string machine(const VmConfig& config) {
    return fmt::format("microvm,rtc={},acpi=off,isa-serial=on,x-option-roms=off,"
                       "memory-backend=ram0,suppress-vmdesc=on",
                       config.accel == model::Accel::kvm ? "off" : "on");
}

// Without erms and fsrm Linux copies by words, where TCG emulates `rep movsb` byte by byte: the
// guest's pipes are two to five times as fast.
const char* cpu(const VmConfig& config) {
    return config.accel == model::Accel::kvm ? "host" : "max,-erms,-fsrm";
}

std::string kernel_arguments(const VmConfig& config) {
    // reboot=t (triple fault), panic=-1 and -no-reboot: a guest that reboots or panics ends QEMU.
    // no_timer_check: on a busy host the ticks of an emulated timer come too late for the kernel's
    // test of it, which then panics ("IO-APIC + timer doesn't work"). KVM guests skip it anyway.
    // numdummies, numifbs: these drivers would begin with network interfaces that nobody asked for.
    std::string text = "console=ttyS0 reboot=t panic=-1 no_timer_check quiet dummy.numdummies=0 "
                       "ifb.numifbs=0";
    if (config.accel == model::Accel::tcg) {
        // A microvm has nothing to calibrate the TSC with; left alone, Linux counts the timer's
        // interrupts, of which a busy host loses many, and the guest's clock falls behind. lpj is
        // the same figure for udelay(): ticks in a jiffy, at CONFIG_HZ=250.
        text += fmt::format(" tsc=reliable tsc_early_khz={} lpj={}", config.tsc_khz,
                            config.tsc_khz * 1000 / kGuestHz);
    }
    return text;
}

// Opened by the preloaded src/ram/ram.cpp, which hands out our descriptor.
std::string memory_backend(const VmConfig& config) {
    return fmt::format("memory-backend-file,id=ram0,size={},mem-path=/proc/self/fd/{},share={}",
                       size_argument(config.memory_bytes), config.memory_fd,
                       config.restore ? "off" : "on");
}

// Debian builds it without seccomp: it refuses -sandbox. The unit's filter (sandbox/unit_spec.cpp)
// and the shim's (shim/spawn_guard.hpp) deny the same.
bool is_microvm_build(const std::string& qemu) {
    return qemu.ends_with("-microvm");
}

// The file below a layer. QEMU opens /dev/fdset/N, which hands out a duplicate of our descriptor.
Json file_node(std::size_t index, const DiskFd& disk) {
    return {{"driver", "file"},
            {"node-name", fmt::format("f{}", index)},
            {"filename", fmt::format("/dev/fdset/{}", index + 1)},
            {"read-only", disk.read_only},
            // Layers are shared read-only between sandboxes, and workdird alone decides who writes
            // which; QEMU's OFD locks would only get in the way of that.
            {"locking", "off"},
            {"aio", "threads"},
            // Through the host's page cache, which all sandboxes of an image share; a guest's flush
            // is an fdatasync all the same.
            {"cache", {{"direct", false}, {"no-flush", false}}},
            {"discard", disk.read_only ? "ignore" : "unmap"}};
}

Json format_node(std::size_t index, const DiskFd& disk) {
    Json node{{"driver", disk.qcow2 ? "qcow2" : "raw"},
              {"node-name", fmt::format("l{}", index)},
              {"file", fmt::format("f{}", index)},
              {"read-only", disk.read_only}};
    if (disk.qcow2) {
        // Always given, so that QEMU never follows a name in the image's header.
        if (index == 0) {
            node["backing"] = nullptr;
        } else {
            node["backing"] = fmt::format("l{}", index - 1);
        }
    }
    if (!disk.read_only) {
        node["discard"] = "unmap"; // fstrim in the guest gives space back to the host
        node["detect-zeroes"] = "unmap";
    }
    return node;
}

} // namespace

std::string save_state_arguments() {
    return Json{{"filename", fmt::format("/dev/fdset/{}", kStateSet)}, {"live", false}}.dump();
}

std::string load_state_arguments(int state_fd) {
    return Json{{"uri", fmt::format("fd:{}", state_fd)}}.dump();
}

std::vector<std::string> command_line(const VmConfig& config) {
    const std::string memory = size_argument(config.memory_bytes);
    std::vector<std::string> argv{config.qemu};
    const auto add = [&](const char* option, std::string value) {
        argv.emplace_back(option);
        argv.push_back(std::move(value));
    };

    // ACPI and option ROMs off: the kernel needs none of them. PIT and PIC stay: without KVM a
    // guest hangs when they are off.
    add("-M", machine(config));
    add("-accel", accelerator(config));
    add("-cpu", cpu(config));
    add("-smp", fmt::format("{}", config.cpus));
    add("-m", "size=" + memory);
    add("-object", memory_backend(config));
    // Of a snapshot: no list of settings at its head, which differ where nothing depends on them.
    add("-global", "migration.send-configuration=off");
    add("-add-fd", fmt::format("fd={},set={}", config.state_fd, kStateSet));
    if (config.restore) {
        add("-incoming", "defer");
    }
    argv.insert(argv.end(), {"-nodefaults", "-no-user-config", "-nographic", "-no-reboot"});
    if (!is_microvm_build(config.qemu)) {
        add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    }

    add("-kernel", fmt::format("/proc/self/fd/{}", config.kernel_fd));
    add("-initrd", fmt::format("/proc/self/fd/{}", config.initrd_fd));
    add("-append", kernel_arguments(config));

    add("-chardev", fmt::format("socket,id=qmp,fd={}", config.qmp_fd));
    add("-mon", "chardev=qmp,mode=control");
    add("-chardev", fmt::format("socket,id=console,fd={}", config.console_fd));
    add("-serial", "chardev:console");

    // Virtio 1, not the legacy register layout that virtio-mmio still has as its default.
    add("-global", "virtio-mmio.force-legacy=false");
    add("-device", "virtio-serial-device");
    add("-chardev", fmt::format("socket,id=agent,fd={}", config.agent_fd));
    add("-device",
        fmt::format("virtserialport,id={},chardev=agent,name={}", kAgentPortId, kAgentPort));

    for (std::size_t i = 0; i < config.layers.size(); ++i) {
        add("-add-fd", fmt::format("fd={},set={}", config.layers[i].fd, i + 1));
        add("-blockdev", file_node(i, config.layers[i]).dump());
        add("-blockdev", format_node(i, config.layers[i]).dump());
    }
    if (!config.layers.empty()) {
        // enospc: a full host disk pauses the machine, any other error goes to the guest.
        add("-device", fmt::format("virtio-blk-device,drive=l{},werror=enospc,rerror=report",
                                   config.layers.size() - 1));
    }
    add("-device", "virtio-balloon-device,free-page-reporting=on");
    add("-device", "virtio-rng-device");
    return argv;
}

} // namespace wd::vmm
