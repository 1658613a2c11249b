#include "model/spec.hpp"

#include "util/ids.hpp"
#include "util/size.hpp"

#include <fmt/format.h>

namespace wd::model {
namespace {

constexpr std::size_t kMaxLabels = 32;
constexpr std::size_t kMaxEnvBytes = 128 * 1024;

Result<void> check_env_list(const std::vector<std::string>& env) {
    std::size_t total = 0;
    for (const std::string& assignment : env) {
        if (auto good = check_env(assignment); !good) {
            return good;
        }
        total += assignment.size() + 1;
    }
    if (total > kMaxEnvBytes) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("the environment has {} bytes; the limit is {}. Put large values "
                                "into a file in the sandbox",
                                total, kMaxEnvBytes));
    }
    return {};
}

} // namespace

Result<void> check_spec(const SandboxSpec& spec, const Limits& limits) {
    if (auto good = check_name(spec.image, "image name"); !good) {
        return good;
    }
    if (!spec.name.empty()) {
        if (auto good = check_name(spec.name, "sandbox name"); !good) {
            return good;
        }
    }
    if (spec.cpus == 0 || spec.cpus > limits.max_cpus) {
        return fail(spec.cpus == 0 ? ErrorCode::invalid_argument : ErrorCode::limit,
                    fmt::format("{} CPUs asked; a sandbox may have 1 to {} (limits.max_cpus in "
                                "workdird.toml)",
                                spec.cpus, limits.max_cpus));
    }
    if (spec.memory_bytes < kMinMemoryBytes) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{} of memory asked; a guest needs at least {}",
                                format_size(spec.memory_bytes), format_size(kMinMemoryBytes)));
    }
    if (spec.memory_bytes % kMiB != 0) {
        return fail(
            ErrorCode::invalid_argument,
            fmt::format("memory of {} bytes is not a whole number of MiB", spec.memory_bytes));
    }
    if (spec.memory_bytes > limits.max_memory_bytes) {
        return fail(ErrorCode::limit, fmt::format("{} of memory asked; a sandbox may have up to {} "
                                                  "(limits.max_memory in workdird.toml)",
                                                  format_size(spec.memory_bytes),
                                                  format_size(limits.max_memory_bytes)));
    }
    if (spec.disk_bytes == 0 || spec.disk_bytes % kMiB != 0) {
        return fail(
            ErrorCode::invalid_argument,
            fmt::format("disk of {} bytes is not a whole number of MiB above 0", spec.disk_bytes));
    }
    if (spec.disk_bytes > limits.max_disk_bytes) {
        return fail(ErrorCode::limit,
                    fmt::format("{} of disk asked; a sandbox may have up to {} (limits.max_disk "
                                "in workdird.toml)",
                                format_size(spec.disk_bytes), format_size(limits.max_disk_bytes)));
    }
    if (spec.labels.size() > kMaxLabels) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{} labels; the limit is {}", spec.labels.size(), kMaxLabels));
    }
    for (const auto& [key, value] : spec.labels) {
        if (auto good = check_label(key, value); !good) {
            return good;
        }
    }
    return check_env_list(spec.env);
}

Result<void> admit(const SandboxSpec& spec, const Limits& limits, const Usage& usage,
                   bool new_sandbox) {
    if (new_sandbox && usage.sandboxes >= limits.max_sandboxes) {
        return fail(ErrorCode::limit,
                    fmt::format("there are {} sandboxes and the limit is {} (limits.max_sandboxes "
                                "in workdird.toml); remove some with wd rm",
                                usage.sandboxes, limits.max_sandboxes));
    }
    if (new_sandbox && usage.sandboxes_of_user >= limits.max_sandboxes_per_user) {
        return fail(ErrorCode::limit,
                    fmt::format("you have {} sandboxes and the limit is {} "
                                "(limits.max_sandboxes_per_user in workdird.toml); remove some "
                                "with wd rm",
                                usage.sandboxes_of_user, limits.max_sandboxes_per_user));
    }
    const std::uint64_t needed = spec.memory_bytes + kMemoryOverheadBytes;
    const std::uint64_t left = limits.memory_total_bytes > usage.live_memory_bytes
                                   ? limits.memory_total_bytes - usage.live_memory_bytes
                                   : 0;
    if (needed > left) {
        return fail(ErrorCode::limit,
                    fmt::format("{} of memory asked and {} for the VMM; {} of {} are available for "
                                "sandboxes (limits.memory_total in workdird.toml); ask for less "
                                "or stop another sandbox",
                                format_size(spec.memory_bytes), format_size(kMemoryOverheadBytes),
                                format_size(left), format_size(limits.memory_total_bytes)));
    }
    const std::uint64_t disk_left = usage.disk_free_bytes > limits.disk_reserve_bytes
                                        ? usage.disk_free_bytes - limits.disk_reserve_bytes
                                        : 0;
    // A stopped sandbox has most of its disk already; it only must not start into a full one.
    const std::uint64_t disk_needed = new_sandbox ? spec.disk_bytes : 1;
    if (disk_needed > disk_left) {
        return fail(ErrorCode::disk_full,
                    fmt::format("{} of disk asked; {} are free below /var/lib/workdir and {} of "
                                "them are kept in reserve (limits.disk_reserve in workdird.toml); "
                                "free space or ask for less",
                                format_size(spec.disk_bytes), format_size(usage.disk_free_bytes),
                                format_size(limits.disk_reserve_bytes)));
    }
    return {};
}

} // namespace wd::model
