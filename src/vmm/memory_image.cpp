#include "vmm/memory_image.hpp"

#include "util/fd.hpp"
#include "util/file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::vmm {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kChunk = 1 << 20; // of memory, read at a time
constexpr std::uint64_t kPresent = 1ull << 63;
constexpr std::uint64_t kSwapped = 1ull << 62;
constexpr std::uint64_t kOfFile = 1ull << 61;

bool is_zero(const char* page) {
    return page[0] == 0 && std::memcmp(page, page + 1, kPage - 1) == 0;
}

class Writer {
public:
    explicit Writer(int out) : out_(out), buffer_(kChunk) {}

    char* buffer() { return buffer_.data(); }

    // `length` bytes of the buffer, whole pages, for `offset`; pages of zeros are left out.
    Result<void> put(std::uint64_t offset, std::uint64_t length, bool clear_zeros) {
        for (std::uint64_t at = 0; at < length;) {
            const bool zero = is_zero(buffer() + at);
            std::uint64_t end = at + kPage;
            while (end < length && is_zero(buffer() + end) == zero) {
                end += kPage;
            }
            if (!zero) {
                if (auto done = write_at(offset + at, at, end - at); !done) {
                    return done;
                }
            } else if (clear_zeros && ::fallocate(out_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                  static_cast<off_t>(offset + at),
                                                  static_cast<off_t>(end - at)) < 0) {
                return fail_errno(errno, "make a hole in the memory image");
            }
            at = end;
        }
        return {};
    }

private:
    Result<void> write_at(std::uint64_t offset, std::uint64_t from, std::uint64_t length) {
        while (length > 0) {
            const ssize_t n = ::pwrite(out_, buffer() + from, length, static_cast<off_t>(offset));
            if (n < 0 && errno != EINTR) {
                return fail_errno(errno, "write the memory image");
            }
            if (n > 0) {
                offset += static_cast<std::uint64_t>(n);
                from += static_cast<std::uint64_t>(n);
                length -= static_cast<std::uint64_t>(n);
            }
        }
        return {};
    }

    int out_;
    std::vector<char> buffer_;
};

// `length` bytes of `fd` at `offset` into the buffer; Error: also where there are fewer.
Result<void> read_at(int fd, std::uint64_t offset, char* to, std::uint64_t length) {
    while (length > 0) {
        const ssize_t n = ::pread(fd, to, length, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return fail_errno(n < 0 ? errno : EIO, "read the guest's memory");
        }
        offset += static_cast<std::uint64_t>(n);
        to += n;
        length -= static_cast<std::uint64_t>(n);
    }
    return {};
}

// What has data in the file, page by page: holes are not read.
Result<std::uint64_t> copy_file(const MemoryFile& memory, int out, Writer& writer) {
    if (!memory.shared && ::ioctl(out, FICLONE, memory.fd) == 0) {
        return memory.bytes; // btrfs, xfs
    }
    std::uint64_t copied = 0;
    off_t at = 0;
    const auto end = static_cast<off_t>(memory.bytes);
    while (at < end) {
        const off_t data = ::lseek(memory.fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) {
            break; // holes up to the end
        }
        const off_t hole = data < 0 ? -1 : ::lseek(memory.fd, data, SEEK_HOLE);
        if (hole < 0) {
            return fail_errno(errno, "find the data in the guest's memory");
        }
        const auto page = static_cast<off_t>(kPage);
        off_t from = data / page * page;
        const off_t until = std::min(end, (hole + page - 1) / page * page);
        while (from < until) {
            const auto length = static_cast<std::uint64_t>(std::min<off_t>(until - from, kChunk));
            auto done =
                read_at(memory.fd, static_cast<std::uint64_t>(from), writer.buffer(), length);
            if (done) {
                done = writer.put(static_cast<std::uint64_t>(from), length, false);
            }
            if (!done) {
                return fail(std::move(done).error());
            }
            copied += length;
            from += static_cast<off_t>(length);
        }
        at = until;
    }
    return copied;
}

struct Mapping {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t offset = 0;
};

// Where QEMU maps the file privately. By its inode alone: /proc's device number is not that of
// stat(2) on every file system.
Result<std::vector<Mapping>> private_mappings(const MemoryFile& memory) {
    struct stat file {};
    if (::fstat(memory.fd, &file) < 0) {
        return fail_errno(errno, "fstat of the memory file");
    }
    auto maps = read_file(fmt::format("/proc/{}/maps", memory.qemu), 16u << 20);
    if (!maps) {
        return fail(std::move(maps).error());
    }
    std::vector<Mapping> found;
    std::uint64_t bytes = 0;
    for (std::size_t at = 0; at < maps->size();) {
        const std::size_t end = std::min(maps->find('\n', at), maps->size());
        const std::string line = maps->substr(at, end - at);
        at = end + 1;
        Mapping mapping;
        std::uint64_t inode = 0;
        std::array<char, 5> mode{};
        if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*s %" SCNu64,
                        &mapping.begin, &mapping.end, mode.data(), &mapping.offset, &inode) == 5 &&
            inode == file.st_ino && mode[1] == 'w' && mode[3] == 'p') {
            bytes += mapping.end - mapping.begin;
            found.push_back(mapping);
        }
    }
    if (bytes != memory.bytes) {
        return fail(
            ErrorCode::internal,
            fmt::format("QEMU maps {} bytes of its memory file, not {}", bytes, memory.bytes));
    }
    return found;
}

class PrivatePages {
public:
    static Result<PrivatePages> open(pid_t qemu) {
        auto pagemap = open_file(fmt::format("/proc/{}/pagemap", qemu), O_RDONLY);
        auto mem = open_file(fmt::format("/proc/{}/mem", qemu), O_RDONLY);
        if (!pagemap || !mem) {
            return fail(!pagemap ? std::move(pagemap).error() : std::move(mem).error());
        }
        return PrivatePages(std::move(*pagemap), std::move(*mem));
    }

    Result<std::uint64_t> copy(const Mapping& mapping, Writer& writer) {
        std::uint64_t copied = 0;
        std::vector<std::uint64_t> entries(kChunk / kPage);
        for (std::uint64_t at = mapping.begin; at < mapping.end; at += kChunk) {
            const std::uint64_t pages = std::min(kChunk, mapping.end - at) / kPage;
            if (auto done =
                    read_at(pagemap_.get(), at / kPage * sizeof(std::uint64_t),
                            reinterpret_cast<char*>(entries.data()), pages * sizeof(std::uint64_t));
                !done) {
                return fail(std::move(done).error());
            }
            for (std::uint64_t page = 0; page < pages;) {
                std::uint64_t end = page;
                while (end < pages && is_private(entries[end])) {
                    ++end;
                }
                if (end == page) {
                    ++page;
                    continue;
                }
                const std::uint64_t from = at + page * kPage;
                const std::uint64_t length = (end - page) * kPage;
                auto done = read_at(mem_.get(), from, writer.buffer(), length);
                if (done) {
                    done = writer.put(from - mapping.begin + mapping.offset, length, true);
                }
                if (!done) {
                    return fail(std::move(done).error());
                }
                copied += length;
                page = end;
            }
        }
        return copied;
    }

private:
    PrivatePages(Fd pagemap, Fd mem) : pagemap_(std::move(pagemap)), mem_(std::move(mem)) {}
    static bool is_private(std::uint64_t entry) {
        return (entry & kOfFile) == 0 && (entry & (kPresent | kSwapped)) != 0;
    }
    Fd pagemap_;
    Fd mem_;
};

} // namespace

Result<MemoryImageStats> write_memory_image(const MemoryFile& memory, int out) {
    if (::ftruncate(out, static_cast<off_t>(memory.bytes)) < 0) {
        return fail_errno(errno, "size the memory image");
    }
    MemoryImageStats stats;
    Writer writer(out);
    auto copied = copy_file(memory, out, writer);
    if (!copied) {
        return fail(std::move(copied).error());
    }
    stats.base_bytes = *copied;
    if (memory.shared) {
        return stats;
    }
    auto mappings = private_mappings(memory);
    if (!mappings) {
        return fail(std::move(mappings).error());
    }
    auto pages = PrivatePages::open(memory.qemu);
    if (!pages) {
        return fail(std::move(pages).error());
    }
    for (const Mapping& mapping : *mappings) {
        auto dirty = pages->copy(mapping, writer);
        if (!dirty) {
            return fail(std::move(dirty).error());
        }
        stats.dirty_bytes += *dirty;
    }
    return stats;
}

} // namespace wd::vmm
