#include "util/file.hpp"

#include "util/text.hpp"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace wd {
namespace {

ErrorCode code_of(int errnum) {
    switch (errnum) {
    case ENOENT:
        return ErrorCode::not_found;
    case ENOSPC:
    case EDQUOT:
        return ErrorCode::disk_full;
    case EACCES:
    case EPERM:
        return ErrorCode::not_authorised;
    default:
        return ErrorCode::internal;
    }
}

tl::unexpected<Error> fail_path(const char* what, const std::filesystem::path& path) {
    const int errnum = errno;
    return fail_errno(errnum, fmt::format("{} {}", what, path.string()), code_of(errnum));
}

} // namespace

Result<Fd> open_file(const std::filesystem::path& path, int flags, unsigned mode) {
    Fd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
    if (!fd) {
        return fail_path("open", path);
    }
    return fd;
}

Result<std::string> read_file(const std::filesystem::path& path, std::size_t limit) {
    auto fd = open_file(path, O_RDONLY);
    if (!fd) {
        return fail(std::move(fd).error());
    }
    std::string out;
    char buffer[16384];
    for (;;) {
        const ssize_t n = ::read(fd->get(), buffer, sizeof buffer);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return fail_path("read", path);
        }
        if (n == 0) {
            return out;
        }
        out.append(buffer, static_cast<std::size_t>(n));
        if (out.size() > limit) {
            return fail(ErrorCode::limit,
                        fmt::format("{} is larger than {} bytes", path.string(), limit));
        }
    }
}

Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view content,
                                   unsigned mode) {
    std::string temporary = path.string() + ".XXXXXX";
    Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));
    if (!fd) {
        return fail_path("create a temporary file beside", path);
    }
    auto undo = [&](tl::unexpected<Error> error) -> Result<void> {
        ::unlink(temporary.c_str());
        return error;
    };
    if (auto done = write_all(fd.get(), content); !done) {
        return undo(fail(std::move(done.error()).context(path.string())));
    }
    if (::fchmod(fd.get(), mode) < 0 || ::fsync(fd.get()) < 0 ||
        ::rename(temporary.c_str(), path.c_str()) < 0) {
        return undo(fail_path("write", path));
    }
    return sync_path(path.has_parent_path() ? path.parent_path() : ".");
}

Result<void> sync_path(const std::filesystem::path& path) {
    auto fd = open_file(path, O_RDONLY);
    if (!fd) {
        return fail(std::move(fd).error());
    }
    if (::fsync(fd->get()) < 0) {
        return fail_path("fsync", path);
    }
    return {};
}

Result<DiskSpace> disk_space(const std::filesystem::path& path) {
    struct statvfs st {};
    if (::statvfs(path.c_str(), &st) < 0) {
        return fail_path("statvfs", path);
    }
    return DiskSpace{.total_bytes = st.f_blocks * st.f_frsize,
                     .free_bytes = st.f_bavail * st.f_frsize};
}

Result<void> remove_tree(const std::filesystem::path& path) {
    std::error_code ec;
    std::filesystem::remove_all(path, ec);
    if (ec) {
        return fail_errno(ec.value(), fmt::format("remove {}", path.string()), code_of(ec.value()));
    }
    return {};
}

} // namespace wd
