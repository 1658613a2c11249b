#include "config/image_manifest.hpp"

#include "util/text.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

namespace wd::config {
namespace {

std::uint64_t number(const toml::table& table, std::string_view key) {
    const std::int64_t value = table[key].value_or(std::int64_t{0});
    return value < 0 ? 0 : static_cast<std::uint64_t>(value);
}

} // namespace

Result<ImageManifest> parse_image_manifest(std::string_view text, std::string_view file_name) {
    toml::table table;
    try {
        table = toml::parse(text, file_name);
    } catch (const toml::parse_error& error) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{}:{}: {}", file_name, error.source().begin.line,
                                printable(error.description(), 300)));
    }
    ImageManifest manifest;
    manifest.name = table["name"].value_or(std::string());
    manifest.version = table["version"].value_or(std::string());
    manifest.suite = table["suite"].value_or(std::string());
    manifest.recipe_hash = table["recipe_sha256"].value_or(std::string());
    manifest.created_us = number(table, "created_us");
    manifest.size_bytes = number(table, "size_bytes");
    manifest.allocated_bytes = number(table, "allocated_bytes");
    if (const toml::array* packages = table["packages"].as_array()) {
        for (const toml::node& package : *packages) {
            manifest.packages.push_back(package.value_or(std::string()));
        }
    }
    if (manifest.name.empty() || manifest.version.empty() || manifest.size_bytes == 0) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{}: name, version or size_bytes is missing", file_name));
    }
    return manifest;
}

} // namespace wd::config
