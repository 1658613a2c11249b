#pragma once
// Where things lie, and the files of one sandbox.

#include "event/sources.hpp"
#include "util/fd.hpp"

#include <filesystem>
#include <functional>
#include <string>

namespace wd::sandbox {

struct Paths {
    std::filesystem::path state = "/var/lib/workdir";
    std::filesystem::path run = "/run/workdir";
    std::filesystem::path recipes = "/usr/share/workdir/images";

    std::filesystem::path database() const { return state / "state.db"; }
    std::filesystem::path images() const { return state / "images"; }
    std::filesystem::path sandboxes() const { return state / "sandboxes"; }
    std::filesystem::path sandbox(std::string_view id) const { return sandboxes() / id; }
    std::filesystem::path disk(std::string_view id) const { return sandbox(id) / "disk.qcow2"; }
    // Where the sandbox was restored: the layer of its golden snapshot (a hard link, so that it
    // stays when the snapshot is replaced), between the image and its own disk.
    std::filesystem::path base_layer(std::string_view id) const {
        return sandbox(id) / "base.qcow2";
    }
    // In standby: memory, state and snapshot.json; and where they are written.
    std::filesystem::path standby(std::string_view id) const { return sandbox(id) / "standby"; }
    std::filesystem::path standby_staging(std::string_view id) const {
        return sandbox(id) / "standby.new";
    }
    std::filesystem::path console(std::string_view id) const { return sandbox(id) / "console.log"; }
    std::filesystem::path control() const { return run / "control"; }
    std::filesystem::path control_socket(std::string_view id) const {
        return control() / (std::string(id) + ".sock");
    }
    std::filesystem::path accel_cache() const { return run / "accel"; }

    // Makes the folders that only root may enter. Error: with the path.
    Result<void> prepare() const;
};

// Makes the folder of a new sandbox and its console log.
Result<void> make_sandbox_folder(const Paths& paths, std::string_view id);

// Makes an empty qcow2 layer in a helper process (qemu-img). No backing file is written into its
// header: QEMU gets the layers by name, so nothing that a guest could put there is ever followed.
class DiskMaker {
public:
    using Done = std::function<void(Result<void>)>;
    // Destroying the maker ends the helper; `done` does not come then.
    static Result<DiskMaker> start(const event::Loop& loop, const std::filesystem::path& path,
                                   std::uint64_t bytes, Done done);

private:
    event::Child child_;
};

// Renames whatever is in sandboxes/ and belongs to none of `ids` out of the way; the result is to
// be removed by remove_trash(), which blocks.
std::size_t sweep_sandbox_folders(const Paths& paths,
                                  const std::function<bool(std::string_view)>& known);
Result<void> remove_trash(const std::filesystem::path& folder);
// Takes the folder of a sandbox out of sight at once.
Result<void> discard_sandbox_folder(const Paths& paths, std::string_view id);
// The same for a folder in one; whether there was one.
Result<bool> discard_folder(const Paths& paths, const std::filesystem::path& folder);

} // namespace wd::sandbox
