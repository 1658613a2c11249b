#pragma once
// /etc/workdir/workdird.toml, read once at start. toml++ stays in here.
//
// Every key has a default, so an empty or absent file is a valid configuration. An unknown key, a
// value of the wrong type or out of range is an error that names file, line, key and what is
// allowed: a typing mistake must not silently leave a limit at its default.

#include "model/spec.hpp"

#include <chrono>
#include <filesystem>
#include <string>

namespace wd::config {

struct Vmm {
    model::AccelChoice accel = model::AccelChoice::automatic;
    std::string qemu; // empty: the host's, by accelerator
    std::chrono::milliseconds boot_timeout{60'000};
    std::chrono::milliseconds kvm_probe_timeout{20'000};
    bool golden = true; // make and use golden snapshots
};

struct Guest {
    std::string kernel = "/usr/lib/workdir/guest/vmlinux";
    std::string initramfs = "/usr/lib/workdir/guest/initramfs.cpio";
};

struct Defaults { // of a create that does not say
    std::string image = "base";
    std::uint32_t cpus = 1;
    std::uint64_t memory_bytes = 512ull << 20;
    std::uint64_t disk_bytes = 8ull << 30;
    std::chrono::milliseconds idle_timeout{120'000};
};

struct Config {
    Vmm vmm;
    Guest guest;
    Defaults defaults;
    // Totals given as a share of the machine are turned into bytes when the file is read.
    model::Limits limits;
    std::uint32_t tasks_max = 128;    // TasksMax of a sandbox unit
    std::uint32_t parallel_boots = 4; // further creates wait in the queue
};

struct Host { // what shares are shares of
    std::uint64_t memory_bytes = 0;
    std::uint32_t cpus = 1;
};
Host this_host();

// Error: invalid_argument.
Result<Config> parse(std::string_view text, std::string_view file_name, const Host& host);

// An absent file gives the defaults.
Result<Config> load(const std::filesystem::path& path, const Host& host);

} // namespace wd::config
