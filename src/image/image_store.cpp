#include "image/image_store.hpp"

#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/size.hpp"
#include "util/text.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

namespace wd::image {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxManifestBytes = 4 * kMiB;

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

// Names in a folder that do not begin with '.', sorted.
std::vector<std::string> visible_names(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code ec;
    for (fs::directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec)) {
        std::string name = at->path().filename().string();
        if (!name.starts_with('.') && at->is_directory(ec)) {
            names.push_back(std::move(name));
        }
    }
    std::sort(names.begin(), names.end());
    return names;
}

Result<Image> read_image(const fs::path& folder) {
    auto text = read_file(folder / "image.toml", kMaxManifestBytes);
    if (!text) {
        return fail(std::move(text).error());
    }
    auto manifest = config::parse_image_manifest(*text, (folder / "image.toml").string());
    if (!manifest) {
        return fail(std::move(manifest).error());
    }
    if (manifest->name != folder.parent_path().filename() ||
        manifest->version != folder.filename()) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{}: says it is {} {}", folder.string(), quote(manifest->name),
                                quote(manifest->version)));
    }
    std::error_code ec;
    if (!fs::is_regular_file(folder / "root.raw", ec)) {
        return fail(ErrorCode::not_found, fmt::format("{}: no root.raw", folder.string()));
    }
    return Image{.manifest = std::move(*manifest), .folder = folder};
}

template <class Good, class Bad>
void visit_images(const fs::path& images_dir, Good good, Bad bad) {
    for (const std::string& name : visible_names(images_dir)) {
        std::vector<std::string> versions = visible_names(images_dir / name);
        std::sort(versions.begin(), versions.end(), version_less);
        for (const std::string& version : versions) {
            if (auto image = read_image(images_dir / name / version)) {
                good(std::move(*image));
            } else {
                bad(image.error());
            }
        }
    }
}

// Complete before it returns, so that the caller may rename or remove what it gets.
std::vector<fs::path> entries_named(const fs::path& folder, std::string_view prefix) {
    std::vector<fs::path> found;
    std::error_code ec;
    for (fs::directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec)) {
        if (at->path().filename().string().starts_with(prefix)) {
            found.push_back(at->path());
        }
    }
    return found;
}

} // namespace

bool version_less(std::string_view a, std::string_view b) {
    while (!a.empty() && !b.empty()) {
        if (is_digit(a[0]) && is_digit(b[0])) {
            const auto take = [](std::string_view& text) {
                const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
                std::string_view digits(text.data(), static_cast<std::size_t>(end - text.begin()));
                text.remove_prefix(digits.size());
                digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
                return digits;
            };
            const std::string_view x = take(a);
            const std::string_view y = take(b);
            if (x != y) {
                return x.size() != y.size() ? x.size() < y.size() : x < y;
            }
        } else if (a[0] != b[0]) {
            return a[0] < b[0];
        } else {
            a.remove_prefix(1);
            b.remove_prefix(1);
        }
    }
    return a.size() < b.size();
}

ImageStore::ImageStore(fs::path images_dir, fs::path recipes_dir)
    : images_dir_(std::move(images_dir)), recipes_dir_(std::move(recipes_dir)) {}

std::vector<Image> ImageStore::list() const {
    std::vector<Image> images;
    visit_images(
        images_dir_, [&](Image image) { images.push_back(std::move(image)); }, [](const Error&) {});
    return images;
}

std::vector<std::string> ImageStore::problems() const {
    std::vector<std::string> problems;
    visit_images(
        images_dir_, [](const Image&) {},
        [&](const Error& error) { problems.push_back(error.message); });
    return problems;
}

Result<Image> ImageStore::find(std::string_view name, std::string_view version) const {
    if (auto good = check_name(name, "image name"); !good) {
        return fail(std::move(good).error());
    }
    std::optional<Image> best;
    std::vector<std::string> names;
    for (Image& image : list()) {
        if (names.empty() || names.back() != image.manifest.name) {
            names.push_back(image.manifest.name);
        }
        if (image.manifest.name == name && (version.empty() || image.manifest.version == version)) {
            best = std::move(image);
        }
    }
    if (best) {
        return std::move(*best);
    }
    if (!version.empty()) {
        return fail(ErrorCode::not_found, fmt::format("no version {} of image {}; see wd image ls",
                                                      quote(version), quote(name)));
    }
    if (recipe(name)) {
        return fail(ErrorCode::not_found,
                    fmt::format("image {} has not been built yet; build it with: wd image build {}",
                                quote(name), name));
    }
    return fail(ErrorCode::not_found,
                fmt::format("no image {}; there are: {}", quote(name),
                            names.empty() ? "none yet (wd image build base)"
                                          : fmt::format("{}", fmt::join(names, ", "))));
}

Result<fs::path> ImageStore::recipe(std::string_view name) const {
    if (auto good = check_name(name, "image name"); !good) {
        return fail(std::move(good).error());
    }
    const fs::path folder = recipes_dir_ / name;
    std::error_code ec;
    if (!fs::is_regular_file(folder / "recipe.toml", ec)) {
        return fail(ErrorCode::not_found,
                    fmt::format("no recipe {} below {}; there are: {}", quote(name),
                                recipes_dir_.string(),
                                fmt::join(visible_names(recipes_dir_), ", ")));
    }
    return folder;
}

std::string ImageStore::new_version(std::string_view name) const {
    const std::string today = fmt::format("{:%Y%m%d}", fmt::gmtime(std::time(nullptr)));
    std::error_code ec;
    for (int number = 1;; ++number) {
        std::string version = fmt::format("{}.{}", today, number);
        if (!fs::exists(images_dir_ / name / version, ec) &&
            !fs::exists(staging(name, version), ec)) {
            return version;
        }
    }
}

fs::path ImageStore::staging(std::string_view name, std::string_view version) const {
    return images_dir_ / fmt::format(".build-{}-{}", name, version);
}

Result<void> ImageStore::discard(const Image& image) {
    const fs::path trash = images_dir_ / fmt::format(".trash-{}-{}-{}", image.manifest.name,
                                                     image.manifest.version, new_machine_id());
    if (::rename(image.folder.c_str(), trash.c_str()) < 0) {
        return fail_errno(errno, fmt::format("remove {}", image.folder.string()));
    }
    (void)::rmdir(image.folder.parent_path().c_str()); // when it was the last version
    return {};
}

void ImageStore::discard_staging(const std::vector<fs::path>& keep) {
    std::error_code ec;
    for (const fs::path& path : entries_named(images_dir_, ".build-")) {
        if (std::find(keep.begin(), keep.end(), path) == keep.end()) {
            fs::rename(path, images_dir_ / (".trash-build-" + new_machine_id()), ec);
        }
    }
}

Result<void> ImageStore::remove_trash(const fs::path& images_dir) {
    for (const fs::path& path : entries_named(images_dir, ".trash-")) {
        if (auto done = remove_tree(path); !done) {
            return done;
        }
    }
    return {};
}

} // namespace wd::image
