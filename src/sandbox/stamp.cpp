#include "sandbox/stamp.hpp"

#include "sandbox/accel_probe.hpp"
#include "util/file.hpp"
#include "util/size.hpp"
#include "vmm/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/utsname.h>

namespace wd::sandbox {
namespace {

// A file that a snapshot depends on. Packages replace files, they do not rewrite them.
std::string print_of(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) < 0) {
        return path + " is missing";
    }
    return fmt::format("{} {} bytes of {}.{:09}", path, info.st_size, info.st_mtim.tv_sec,
                       info.st_mtim.tv_nsec);
}

// What the guest has been told of its processor, and the kernel that KVM is part of.
std::string host_print() {
    std::string out;
    utsname names{};
    ::uname(&names);
    out += fmt::format("kernel {}\n", names.release);
    const auto cpus = read_file("/proc/cpuinfo", 16 * kMiB);
    for (const std::string_view key : {"model name", "microcode", "flags", "Features"}) {
        const auto at = cpus ? cpus->find(fmt::format("\n{}", key)) : std::string::npos;
        if (at != std::string::npos) {
            out += cpus->substr(at + 1, cpus->find('\n', at + 1) - at);
        }
    }
    return out;
}

} // namespace

std::string machine_stamp(const config::Config& config, const image::Shape& shape) {
    static const std::string host = host_print(); // constant while it runs
    const std::string qemu = qemu_binary(config, shape.accel);
    const auto argv = vmm::command_line({.qemu = qemu,
                                         .accel = shape.accel,
                                         .cpus = shape.cpus,
                                         .memory_bytes = shape.memory_bytes,
                                         .restore = true,
                                         .layers = {{}, {}}});
    return fmt::format("{}\n{}\n{}", print_of(qemu), fmt::join(argv, " "), host);
}

std::string golden_stamp(const config::Config& config, const image::Image& image,
                         const image::Shape& shape) {
    return fmt::format("workdir {}\n{}\n{}\n{}\n{}", WORKDIR_VERSION, print_of(config.guest.kernel),
                       print_of(config.guest.initramfs), print_of(image.root()),
                       machine_stamp(config, shape));
}

} // namespace wd::sandbox
