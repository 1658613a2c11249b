#include "image/snapshot.hpp"

#include "util/file.hpp"
#include "util/size.hpp"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::image {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kInfo = "snapshot.json";
constexpr std::size_t kMaxInfoBytes = 64 * kKiB;

// Size and time of the last change: nobody writes these files once they are complete. (A file that
// is changed behind both is not found out here; its guest does not answer, and boots cold instead.)
Result<Json> print_of(const fs::path& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) < 0) {
        return fail_errno(errno, path.string());
    }
    return Json{static_cast<std::uint64_t>(info.st_size),
                static_cast<std::int64_t>(info.st_mtim.tv_sec),
                static_cast<std::int64_t>(info.st_mtim.tv_nsec)};
}

tl::unexpected<Error> damaged(const fs::path& folder, std::string_view why) {
    return fail(ErrorCode::invalid_argument, fmt::format("{}: {}", folder.string(), why));
}

// A host that is out of memory or descriptors just now has not damaged anything.
tl::unexpected<Error> missing_or_unreadable(const fs::path& folder, const Error& error) {
    return error.errnum == ENOENT || error.code == ErrorCode::limit ? damaged(folder, error.message)
                                                                    : fail(error);
}

} // namespace

Result<void> seal_snapshot(const fs::path& folder, const SnapshotFiles& files,
                           const SnapshotInfo& info) {
    Json json{{"stamp", info.stamp},
              {"agent_version", info.agent_version},
              {"kernel_release", info.kernel_release}};
    for (const std::string& file : files) {
        if (auto done = sync_path(folder / file); !done) {
            return done;
        }
        auto print = print_of(folder / file);
        if (!print) {
            return fail(std::move(print).error());
        }
        json[file] = *print;
    }
    return write_file_atomically(folder / kInfo, json.dump(2) + "\n");
}

Result<SnapshotInfo> open_snapshot(const fs::path& folder, const SnapshotFiles& files,
                                   std::string_view stamp) {
    std::error_code ec;
    if (!fs::exists(folder, ec)) {
        return fail(ErrorCode::not_found, fmt::format("there is no {}", folder.string()));
    }
    auto text = read_file(folder / kInfo, kMaxInfoBytes);
    if (!text) {
        return missing_or_unreadable(folder, text.error());
    }
    const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    const auto word = [&](const char* key) {
        return json.is_object() && json.contains(key) && json[key].is_string()
                   ? json[key].get<std::string>()
                   : std::string();
    };
    SnapshotInfo info{.stamp = word("stamp"),
                      .agent_version = word("agent_version"),
                      .kernel_release = word("kernel_release")};
    if (info.stamp != stamp) {
        return fail(ErrorCode::unsupported,
                    fmt::format("{}: made by another QEMU, guest kernel, workdir or on another "
                                "processor",
                                folder.string()));
    }
    for (const std::string& file : files) {
        const auto print = print_of(folder / file);
        if (!print) {
            return missing_or_unreadable(folder, print.error());
        }
        if (!json.contains(file) || json[file] != *print) {
            return damaged(folder, fmt::format("{} was changed", file));
        }
    }
    return info;
}

} // namespace wd::image
