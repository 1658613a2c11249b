#include "sandbox/files.hpp"

#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/spawn.hpp"
#include "util/text.hpp"

#include <array>
#include <cerrno>
#include <memory>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace wd::sandbox {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTrash = ".trash-";
constexpr const char* kQemuImg = "/usr/bin/qemu-img";

Result<void> make_folder(const fs::path& path, mode_t mode) {
    if (::mkdir(path.c_str(), mode) < 0 && errno != EEXIST) {
        return fail_errno(errno, fmt::format("make {}", path.string()),
                          errno == ENOSPC ? ErrorCode::disk_full : ErrorCode::internal);
    }
    return {};
}

Result<void> move_to_trash(const fs::path& path, const fs::path& folder) {
    const fs::path trash = folder / fmt::format("{}{}", kTrash, new_machine_id());
    if (::rename(path.c_str(), trash.c_str()) < 0 && errno != ENOENT) {
        return fail_errno(errno, fmt::format("remove {}", path.string()));
    }
    return {};
}

} // namespace

Result<void> Paths::prepare() const {
    struct Folder {
        fs::path path;
        mode_t mode;
    };
    // run itself is open to look into; what is in it is not.
    const Folder folders[] = {
        {state, 0700}, {images(), 0700}, {sandboxes(), 0700}, {run, 0755}, {control(), 0700}};
    for (const Folder& folder : folders) {
        if (auto done = make_folder(folder.path, folder.mode); !done) {
            return done;
        }
    }
    return {};
}

Result<void> make_sandbox_folder(const Paths& paths, std::string_view id) {
    if (auto done = make_folder(paths.sandbox(id), 0700); !done) {
        return done;
    }
    auto console = open_file(paths.console(id), O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (!console) {
        return fail(std::move(console).error());
    }
    return {};
}

Result<DiskMaker> DiskMaker::start(const event::Loop& loop, const fs::path& path,
                                   std::uint64_t bytes, Done done) {
    auto output = socket_pair(SOCK_STREAM | SOCK_NONBLOCK);
    if (!output) {
        return fail(std::move(output).error());
    }
    const auto pid =
        spawn({kQemuImg, "create", "-q", "-f", "qcow2", path.string(), std::to_string(bytes)},
              output->second.get());
    if (!pid) {
        return fail(pid.error());
    }
    // What it says on failure is short; it stays in the socket until the child has ended.
    auto said = std::make_shared<Fd>(std::move(output->first));
    auto child = event::Child::create(
        loop, *pid, [said, done = std::move(done), path](const siginfo_t& info) {
            if (info.si_code == CLD_EXITED && info.si_status == 0) {
                done({});
                return;
            }
            std::array<char, 1024> text{};
            const ssize_t n = ::read(said->get(), text.data(), text.size());
            const std::string_view view(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
            done(fail(view.find("No space") != std::string_view::npos ? ErrorCode::disk_full
                                                                      : ErrorCode::start_failed,
                      fmt::format("make the disk {}: {}", path.string(),
                                  view.empty() ? "qemu-img failed" : printable(view, 300))));
        });
    if (!child) {
        return fail(std::move(child).error());
    }
    DiskMaker maker;
    maker.child_ = std::move(*child);
    return maker;
}

std::size_t sweep_sandbox_folders(const Paths& paths,
                                  const std::function<bool(std::string_view)>& known) {
    std::vector<fs::path> strays;
    std::error_code ec;
    for (fs::directory_iterator at(paths.sandboxes(), ec), end; !ec && at != end;
         at.increment(ec)) {
        const std::string name = at->path().filename().string();
        if (!name.starts_with(kTrash) && !known(name)) {
            strays.push_back(at->path());
        }
    }
    std::size_t moved = 0;
    for (const fs::path& path : strays) {
        moved += move_to_trash(path, paths.sandboxes()) ? 1 : 0;
    }
    return moved;
}

Result<void> remove_trash(const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code ec;
    for (fs::directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec)) {
        if (at->path().filename().string().starts_with(kTrash)) {
            found.push_back(at->path());
        }
    }
    for (const fs::path& path : found) {
        if (auto done = remove_tree(path); !done) {
            return done;
        }
    }
    return {};
}

Result<void> discard_sandbox_folder(const Paths& paths, std::string_view id) {
    return move_to_trash(paths.sandbox(id), paths.sandboxes());
}

Result<bool> discard_folder(const Paths& paths, const fs::path& folder) {
    if (::access(folder.c_str(), F_OK) < 0) {
        return false;
    }
    auto moved = move_to_trash(folder, paths.sandboxes());
    return moved ? Result<bool>(true) : fail(std::move(moved).error());
}

} // namespace wd::sandbox
