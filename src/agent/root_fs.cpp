#include "agent/root_fs.hpp"

#include "agent/clock.hpp"
#include "agent/console.hpp"
#include "agent/device.hpp"
#include "agent/files.hpp"
#include "util/fd.hpp"

#include <algorithm>
#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::agent {
namespace {

constexpr const char* kNewRoot = "/newroot";
// Tables of new block groups are not zeroed in the background: the kernel never reads what it has
// not written (itable_unused), and zeroing would fill a sparse disk for nothing.
constexpr const char* kOptions = "noinit_itable";
// But told not to zero later, the kernel would zero the tables at once, while it grows the file
// system. It starts to zero some seconds after a mount; by then settle_root() has been there.
constexpr const char* kOptionsWhileGrowing = "init_itable";
// fs/ext4/ext4.h: _IOW('f', 16, __u64), the new size in blocks.
constexpr unsigned long kExt4ResizeFs = _IOW('f', 16, std::uint64_t);

struct Mount {
    const char* source;
    const char* target;
    const char* type;
    unsigned long flags;
    const char* options;
    bool needed;
};

constexpr Mount kEarly[] = {
    {"devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=755", true},
    {"proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr, true},
    {"sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr, true},
};

constexpr Mount kLate[] = {
    {"devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666", true},
    {"tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", true},
    {"mqueue", "/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr, false},
    {"tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755", true},
    {"cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC,
     "nsdelegate,memory_recursiveprot", true},
};

Outcome<void> mount_one(const Mount& m) {
    ::mkdir(m.target, 0755);
    // EBUSY: the kernel itself has mounted devtmpfs (CONFIG_DEVTMPFS_MOUNT).
    if (::mount(m.source, m.target, m.type, m.flags, m.options) < 0 && errno != EBUSY) {
        auto failed = failure_errno(errno, std::string("mount ") + m.target);
        if (m.needed) {
            return failed;
        }
        console("%s", failed.value().message.c_str());
    }
    return {};
}

std::uint64_t little_endian(const unsigned char* from, int bytes) {
    std::uint64_t value = 0;
    for (int i = bytes; i-- > 0;) {
        value = value << 8 | from[i];
    }
    return value;
}

struct Geometry {
    std::uint64_t block_size = 0;
    std::uint64_t blocks = 0;
    std::uint64_t device_bytes = 0;
};

// Superblock fields: Documentation/filesystems/ext4/super.rst.
Outcome<Geometry> read_geometry(const std::string& path) {
    const Fd disk(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!disk) {
        return failure_errno(errno, "open " + path);
    }
    unsigned char super[1024];
    Geometry geometry;
    if (::ioctl(disk.get(), BLKGETSIZE64, &geometry.device_bytes) < 0) {
        return failure_errno(errno, "size of " + path);
    }
    const ssize_t n = ::pread(disk.get(), super, sizeof super, 1024);
    if (n < 0) {
        return failure_errno(errno, "read " + path);
    }
    if (n != sizeof super || little_endian(super + 0x38, 2) != 0xef53) {
        return failure(FailureKind::other, EINVAL, path + " holds no ext4 file system");
    }
    geometry.block_size = std::uint64_t{1024}
                          << std::min<std::uint64_t>(little_endian(super + 0x18, 4), 6);
    geometry.blocks = little_endian(super + 4, 4);
    if ((little_endian(super + 0x60, 4) & 0x80) != 0) { // INCOMPAT_64BIT
        geometry.blocks |= little_endian(super + 0x150, 4) << 32;
    }
    return geometry;
}

Outcome<void> grow(std::uint64_t blocks) {
    const Fd root(::open(kNewRoot, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!root) {
        return failure_errno(errno, "open the root file system");
    }
    if (::ioctl(root.get(), kExt4ResizeFs, &blocks) < 0) {
        return failure_errno(errno, "grow the root file system to its disk");
    }
    return {};
}

Outcome<void> switch_root() {
    for (const char* const name : {"/dev", "/proc", "/sys"}) {
        const std::string target = std::string(kNewRoot) + name;
        ::mkdir(target.c_str(), 0755);
        if (::mount(name, target.c_str(), nullptr, MS_MOVE, nullptr) < 0) {
            return failure_errno(errno, "move " + target);
        }
    }
    ::unlink("/init"); // the only file of some size; it lives on as long as it runs
    if (::chdir(kNewRoot) < 0 || ::mount(".", "/", nullptr, MS_MOVE, nullptr) < 0 ||
        ::chroot(".") < 0 || ::chdir("/") < 0) {
        return failure_errno(errno, "switch to the root file system");
    }
    // As systemd does: containers in the guest see later mounts where they ask for it.
    ::mount(nullptr, "/", nullptr, MS_REC | MS_SHARED, nullptr);
    return {};
}

// What udev would do; devtmpfs only has the kernel's own modes.
void complete_dev() {
    static_cast<void>(
        ::symlink("/proc/self/fd", "/dev/fd") + ::symlink("/proc/self/fd/0", "/dev/stdin") +
        ::symlink("/proc/self/fd/1", "/dev/stdout") + ::symlink("/proc/self/fd/2", "/dev/stderr"));
    ::chmod("/dev/fuse", 0666);
    ::chmod("/dev/net/tun", 0666);
}

} // namespace

Outcome<void> mount_early() {
    for (const Mount& m : kEarly) {
        if (auto done = mount_one(m); !done) {
            return done;
        }
    }
    return {};
}

Outcome<Root> mount_root(const std::string& device, std::uint64_t deadline) {
    if (device.empty() ||
        device.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") != std::string::npos) {
        return failure(FailureKind::other, EINVAL, "no device can have the name " + quote(device));
    }
    const std::string path = "/dev/" + device;
    DeviceWatch watch;
    while (::access(path.c_str(), F_OK) != 0) {
        if (!watch.wait(deadline)) {
            return failure(FailureKind::other, ENODEV, "there is no disk " + path);
        }
    }
    auto geometry = read_geometry(path);
    if (!geometry) {
        return tl::unexpected(std::move(geometry.error()));
    }
    const std::uint64_t device_blocks = geometry->device_bytes / geometry->block_size;
    if (device_blocks < geometry->blocks) {
        return failure(FailureKind::other, ENOSPC, path + " is smaller than the file system on it");
    }
    const bool to_grow = device_blocks > geometry->blocks;
    ::mkdir(kNewRoot, 0755);
    if (::mount(path.c_str(), kNewRoot, "ext4", 0, to_grow ? kOptionsWhileGrowing : kOptions) < 0) {
        return failure_errno(errno, "mount " + path);
    }
    if (to_grow) {
        const std::uint64_t begin = boot_ns();
        if (auto grown = grow(device_blocks); !grown) {
            return tl::unexpected(std::move(grown.error()));
        }
        console("root file system grown from %llu to %llu MiB in %llu ms",
                static_cast<unsigned long long>(geometry->blocks * geometry->block_size >> 20),
                static_cast<unsigned long long>(device_blocks * geometry->block_size >> 20),
                static_cast<unsigned long long>((boot_ns() - begin) / kMillisecond));
    }
    if (auto switched = switch_root(); !switched) {
        return tl::unexpected(std::move(switched.error()));
    }
    for (const Mount& m : kLate) {
        if (auto done = mount_one(m); !done) {
            return tl::unexpected(std::move(done.error()));
        }
    }
    complete_dev();
    if (::mkdir("/tmp", 0755) == 0) {
        ::chmod("/tmp", 01777);
    }
    return Root{.bytes = device_blocks * geometry->block_size, .grown = to_grow};
}

void settle_root() {
    if (::mount(nullptr, "/", nullptr, MS_REMOUNT, kOptions) < 0) {
        console("remount of the root file system: %s", errno_text(errno).c_str());
    }
}

void quiesce_root(bool compact) {
    settle_root(); // also waits for one that is under way
    ::sync();
    if (!compact) {
        return;
    }
    // Pages that nothing needs would only make the snapshot larger. Compacted, free memory comes in
    // the large blocks that free page reporting tells the host of.
    constexpr const char* kSettings[][2] = {{"/proc/sys/vm/drop_caches", "3"},
                                            {"/proc/sys/vm/compact_memory", "1"}};
    for (const auto& [file, value] : kSettings) {
        const Fd fd(::open(file, O_WRONLY | O_CLOEXEC));
        if (!fd || ::write(fd.get(), value, 1) != 1) {
            console("%s: %s", file, errno_text(errno).c_str());
        }
    }
}

void unmount_all() {
    ::sync();
    const auto table = read_small_file("/proc/self/mounts", 1024 * 1024);
    std::vector<std::string> targets;
    std::string_view rest = table ? std::string_view(*table) : std::string_view();
    while (!rest.empty()) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        const std::string_view line = rest.substr(0, end);
        const std::size_t from = line.find(' ');
        if (from != std::string_view::npos) {
            const std::string_view target = line.substr(from + 1);
            targets.push_back(unescape_mount(target.substr(0, target.find(' '))));
        }
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    for (auto target = targets.rbegin(); target != targets.rend(); ++target) {
        if (*target != "/" && *target != "/proc" && *target != "/dev") {
            ::umount2(target->c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
        }
    }
    if (::mount(nullptr, "/", nullptr, MS_REMOUNT | MS_RDONLY, nullptr) < 0) {
        console("the root file system stays writable: %s", errno_text(errno).c_str());
    }
    ::sync();
}

} // namespace wd::agent
