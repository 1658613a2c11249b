#pragma once
// The images on disk: IMAGES_DIR/<name>/<version>/{root.raw,image.toml}. A version is written once,
// appears by one rename and is never changed. Names beginning with '.' are work in progress
// (".build-…", ".trash-…") and never images.
//
// Everything here is a few system calls on a small folder and runs in the loop, except
// remove_trash.

#include "config/image_manifest.hpp"
#include "util/result.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace wd::image {

struct Image {
    config::ImageManifest manifest;
    std::filesystem::path folder;
    std::filesystem::path root() const { return folder / "root.raw"; }
};

class ImageStore {
public:
    ImageStore(std::filesystem::path images_dir, std::filesystem::path recipes_dir);

    // All versions, newest last within a name. A folder that is not a good image is left out (it is
    // reported by problems()).
    std::vector<Image> list() const;
    std::vector<std::string> problems() const;

    // version empty: the newest. Error: not_found, with what to do.
    Result<Image> find(std::string_view name, std::string_view version = {}) const;

    // The folder of an installed recipe. Error: not_found, naming those there are.
    Result<std::filesystem::path> recipe(std::string_view name) const;

    // A version for a new build: the date, and a number where there is one of today: 20261130.2
    std::string new_version(std::string_view name) const;
    // A folder for a build, which does not exist yet.
    std::filesystem::path staging(std::string_view name, std::string_view version) const;

    // Takes the version out of sight by a rename; remove_trash() does the slow part.
    Result<void> discard(const Image& image);
    // The same for staging folders other than those in `keep`.
    void discard_staging(const std::vector<std::filesystem::path>& keep);
    // Left-overs of discards. Blocks.
    static Result<void> remove_trash(const std::filesystem::path& images_dir);

    const std::filesystem::path& folder() const noexcept { return images_dir_; }

private:
    std::filesystem::path images_dir_;
    std::filesystem::path recipes_dir_;
};

// "20261130.10" after "20261130.2": numbers within the text count as numbers.
bool version_less(std::string_view a, std::string_view b);

} // namespace wd::image
