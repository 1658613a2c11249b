// workdir-ram.so, preloaded into QEMU alone, where its memory is in a file that workdird has
// opened.
//
// QEMU opens memory files by name, for writing, and punches holes into them when the guest reports
// free pages. Here the name in $WORKDIR_RAM, /proc/self/fd/N, gives a duplicate of the descriptor
// itself, whose mode is then what holds: QEMU needs no right to the file by path. And where it may
// only be read, since a snapshot is shared between sandboxes and mapped privately, punching a hole
// succeeds without doing anything: QEMU's following MADV_DONTNEED gives the private pages back.
//
// QEMU 8.2 has readonly=on,rom=off for the first; nothing for the second.

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

namespace {

constexpr char kFdFolder[] = "/proc/self/fd/";

// The descriptor that $WORKDIR_RAM names, when `path` is that name; else -1.
int ram_fd(const char* path) {
    const char* const name = std::getenv("WORKDIR_RAM");
    if (name == nullptr || std::strcmp(path, name) != 0 ||
        std::strncmp(name, kFdFolder, sizeof kFdFolder - 1) != 0) {
        return -1;
    }
    return std::atoi(name + sizeof kFdFolder - 1);
}

int open_by(const char* symbol, const char* path, int flags, mode_t mode) {
    if (const int fd = ram_fd(path); fd >= 0) {
        return fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    using Open = int (*)(const char*, int, ...);
    return reinterpret_cast<Open>(dlsym(RTLD_NEXT, symbol))(path, flags, mode);
}

bool is_read_only_ram(int fd) {
    const char* const name = std::getenv("WORKDIR_RAM");
    const int ram = name == nullptr ? -1 : ram_fd(name);
    struct stat ours {};
    struct stat its {};
    return ram >= 0 && (fcntl(ram, F_GETFL) & O_ACCMODE) == O_RDONLY && fstat(ram, &ours) == 0 &&
           fstat(fd, &its) == 0 && ours.st_dev == its.st_dev && ours.st_ino == its.st_ino;
}

int fallocate_by(const char* symbol, int fd, int mode, off64_t offset, off64_t length) {
    if (is_read_only_ram(fd)) {
        return 0;
    }
    using Fallocate = int (*)(int, int, off64_t, off64_t);
    return reinterpret_cast<Fallocate>(dlsym(RTLD_NEXT, symbol))(fd, mode, offset, length);
}

} // namespace

// The names that a program built with large files and _FORTIFY_SOURCE uses, and those without.
#define WD_OPEN(name)                                                                              \
    extern "C" __attribute__((visibility("default"))) int name(const char* path, int flags, ...) { \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;     \
        va_end(rest);                                                                              \
        return open_by(#name, path, flags, mode);                                                  \
    }
WD_OPEN(open)
WD_OPEN(open64)
#undef WD_OPEN

extern "C" __attribute__((visibility("default"))) int __open64_2(const char* path, int flags) {
    return open_by("open64", path, flags, 0);
}

extern "C" __attribute__((visibility("default"))) int __open_2(const char* path, int flags) {
    return open_by("open64", path, flags, 0);
}

extern "C" __attribute__((visibility("default"))) int fallocate(int fd, int mode, off64_t offset,
                                                                off64_t length) {
    return fallocate_by("fallocate", fd, mode, offset, length);
}

extern "C" __attribute__((visibility("default"))) int fallocate64(int fd, int mode, off64_t offset,
                                                                  off64_t length) {
    return fallocate_by("fallocate64", fd, mode, offset, length);
}
