#include "config/config.hpp"

#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/size.hpp"
#include "util/text.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <toml++/toml.h>

#include <unistd.h>

namespace wd::config {
namespace {

constexpr std::size_t kMaxFileBytes = 1 * kMiB;

// One table of the file. A getter consumes its key; finish() complains about what is left.
class Section {
public:
    Section(const toml::table& root, std::string name, std::string_view file)
        : name_(std::move(name)), file_(file) {
        if (const toml::node* node = root.get(name_)) {
            table_ = node->as_table();
            if (table_ == nullptr) {
                complain(*node, name_, "is not a table");
            }
        }
    }

    void integer(const char* key, std::uint32_t& out, std::uint32_t low, std::uint32_t high) {
        const toml::node* node = take(key);
        if (node == nullptr) {
            return;
        }
        const auto value = node->value_exact<std::int64_t>();
        if (!value || *value < low || *value > high) {
            complain(*node, path(key),
                     fmt::format("takes a whole number from {} to {}", low, high));
            return;
        }
        out = static_cast<std::uint32_t>(*value);
    }
    void size(const char* key, std::uint64_t& out) {
        with_text(key, "takes a size as a string, such as \"512M\"", [&](const std::string& text) {
            auto bytes = parse_size(text);
            if (bytes) {
                out = *bytes;
            }
            return bytes ? std::string() : bytes.error().message;
        });
    }
    // A size, or a share of `whole` such as "80%".
    void size_or_share(const char* key, std::uint64_t whole, std::uint64_t& out) {
        with_text(key, "takes a size such as \"4G\" or a share such as \"80%\"",
                  [&](const std::string& text) -> std::string {
                      if (text.ends_with('%')) {
                          std::uint32_t percent = 0;
                          const char* const end = text.data() + text.size() - 1;
                          const auto [rest, ec] = std::from_chars(text.data(), end, percent);
                          if (ec != std::errc() || rest != end || percent > 1000) {
                              return fmt::format("{} is not a share in percent", quote(text));
                          }
                          out = whole / 100 * percent;
                          return {};
                      }
                      auto bytes = parse_size(text);
                      if (bytes) {
                          out = *bytes;
                      }
                      return bytes ? std::string() : bytes.error().message;
                  });
    }
    enum class Zero { refused, never };
    void duration(const char* key, std::chrono::milliseconds& out, Zero zero = Zero::refused) {
        with_text(key, "takes a time such as \"500ms\", \"20s\" or \"2min\"",
                  [&](const std::string& text) -> std::string {
                      if (zero == Zero::never && text == "0") {
                          out = {};
                          return {};
                      }
                      std::int64_t number = 0;
                      const char* const end = text.data() + text.size();
                      const auto [rest, ec] = std::from_chars(text.data(), end, number);
                      const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
                      const std::int64_t factor = unit == "ms"    ? 1
                                                  : unit == "s"   ? 1000
                                                  : unit == "min" ? 60'000
                                                                  : 0;
                      if (ec != std::errc() || factor == 0 || number <= 0 ||
                          number > 3'600'000 / factor) {
                          return fmt::format("{} is not a time from 1ms to 60min", quote(text));
                      }
                      out = std::chrono::milliseconds(number * factor);
                      return {};
                  });
    }
    void absolute_path(const char* key, std::string& out) {
        with_text(key, "takes an absolute path", [&](const std::string& text) -> std::string {
            if (!text.starts_with('/') || text.find('\0') != std::string::npos) {
                return fmt::format("{} is not an absolute path", quote(text));
            }
            out = text;
            return {};
        });
    }
    void name(const char* key, std::string& out) {
        with_text(key, "takes a name", [&](const std::string& text) -> std::string {
            if (auto good = check_name(text, "name"); !good) {
                return good.error().message;
            }
            out = text;
            return {};
        });
    }
    void accel(const char* key, model::AccelChoice& out) {
        constexpr std::string_view kForm = "takes \"auto\", \"kvm\" or \"tcg\"";
        with_text(key, kForm, [&](const std::string& text) -> std::string {
            const auto value = model::from_string<model::AccelChoice>(text);
            if (!value) {
                return fmt::format("{} is none of \"auto\", \"kvm\", \"tcg\"", quote(text));
            }
            out = *value;
            return {};
        });
    }

    void boolean(const char* key, bool& out) {
        const toml::node* node = take(key);
        if (node == nullptr) {
            return;
        }
        if (const auto value = node->value_exact<bool>()) {
            out = *value;
        } else {
            complain(*node, path(key), "takes true or false");
        }
    }

    Result<void> finish() {
        if (problem_.empty() && table_ != nullptr) {
            for (const auto& [key, node] : *table_) {
                if (!taken_.contains(std::string(key.str()))) {
                    complain(node, path(key.str()), "is not a known setting; see workdird.toml(5)");
                    break;
                }
            }
        }
        if (!problem_.empty()) {
            return fail(ErrorCode::invalid_argument, problem_);
        }
        return {};
    }

private:
    std::string path(std::string_view key) const { return fmt::format("{}.{}", name_, key); }
    const toml::node* take(const char* key) {
        taken_.insert(key);
        return table_ == nullptr ? nullptr : table_->get(key);
    }
    void with_text(const char* key, std::string_view form,
                   const std::function<std::string(const std::string&)>& use) {
        const toml::node* node = take(key);
        if (node == nullptr) {
            return;
        }
        const auto text = node->value_exact<std::string>();
        const std::string problem = text ? use(*text) : std::string(form);
        if (!problem.empty()) {
            complain(*node, path(key), problem);
        }
    }
    void complain(const toml::node& node, std::string_view key, std::string_view problem) {
        if (problem_.empty()) {
            problem_ = fmt::format("{}:{}: {}: {}", file_, node.source().begin.line,
                                   printable(key, 80), problem);
        }
    }

    std::string name_;
    std::string_view file_;
    const toml::table* table_ = nullptr;
    std::set<std::string, std::less<>> taken_;
    std::string problem_;
};

Result<void> check_top_level(const toml::table& root, std::string_view file) {
    constexpr std::string_view kKnown[] = {"vmm", "guest", "defaults", "limits"};
    for (const auto& [key, node] : root) {
        if (std::find(std::begin(kKnown), std::end(kKnown), key.str()) == std::end(kKnown)) {
            return fail(ErrorCode::invalid_argument,
                        fmt::format("{}:{}: {}: is not a known section; there are [vmm], [guest], "
                                    "[defaults] and [limits]",
                                    file, node.source().begin.line, quote(key.str())));
        }
    }
    return {};
}

void read_limits(Section& section, const Host& host, Config& config) {
    model::Limits& limits = config.limits;
    section.integer("max_cpus", limits.max_cpus, 1, 64);
    section.size_or_share("max_memory", host.memory_bytes, limits.max_memory_bytes);
    section.size("max_disk", limits.max_disk_bytes);
    section.integer("max_sandboxes", limits.max_sandboxes, 1, 100'000);
    section.integer("max_sandboxes_per_user", limits.max_sandboxes_per_user, 1, 100'000);
    section.size_or_share("memory_total", host.memory_bytes, limits.memory_total_bytes);
    section.size("disk_reserve", limits.disk_reserve_bytes);
    section.integer("tasks_max", config.tasks_max, 16, 10'000);
    section.integer("parallel_boots", config.parallel_boots, 1, 256);
}

// A create that asks for nothing must not be one that is refused.
Result<void> check_defaults(const Config& config, std::string_view file_name) {
    const Defaults& ours = config.defaults;
    const model::Limits& limits = config.limits;
    const auto above = [&](const char* key, const std::string& value, const std::string& limit) {
        return fail(
            ErrorCode::invalid_argument,
            fmt::format("{}: defaults.{} is {}, above limits.max_{} with {}; set one of them",
                        file_name, key, value, key, limit));
    };
    if (ours.cpus > limits.max_cpus) {
        return above("cpus", std::to_string(ours.cpus), std::to_string(limits.max_cpus));
    }
    if (ours.memory_bytes > limits.max_memory_bytes) {
        return above("memory", format_size(ours.memory_bytes),
                     format_size(limits.max_memory_bytes));
    }
    if (ours.disk_bytes > limits.max_disk_bytes) {
        return above("disk", format_size(ours.disk_bytes), format_size(limits.max_disk_bytes));
    }
    return {};
}

Config defaults_for(const Host& host) {
    Config config;
    config.limits = {
        .max_cpus = 16, // the guest kernel takes up to 64 (CONFIG_NR_CPUS)
        .max_memory_bytes = host.memory_bytes,
        .max_disk_bytes = 256 * kGiB,
        .max_sandboxes = 1000,
        .max_sandboxes_per_user = 1000,
        .memory_total_bytes = host.memory_bytes / 100 * 90,
        .disk_reserve_bytes = 2 * kGiB,
    };
    config.parallel_boots = std::max(2u, host.cpus);
    return config;
}

} // namespace

Host this_host() {
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    const long page_size = ::sysconf(_SC_PAGESIZE);
    const long cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
    return {.memory_bytes =
                static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_size),
            .cpus = static_cast<std::uint32_t>(std::max(1l, cpus))};
}

Result<Config> parse(std::string_view text, std::string_view file_name, const Host& host) {
    toml::table root;
    try {
        root = toml::parse(text, file_name);
    } catch (const toml::parse_error& error) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("{}:{}: {}", file_name, error.source().begin.line,
                                printable(error.description(), 300)));
    }
    if (auto good = check_top_level(root, file_name); !good) {
        return fail(std::move(good).error());
    }
    Config config = defaults_for(host);

    Section vmm(root, "vmm", file_name);
    vmm.accel("accel", config.vmm.accel);
    vmm.absolute_path("qemu", config.vmm.qemu);
    vmm.duration("boot_timeout", config.vmm.boot_timeout);
    vmm.duration("kvm_probe_timeout", config.vmm.kvm_probe_timeout);
    vmm.boolean("golden", config.vmm.golden);

    Section guest(root, "guest", file_name);
    guest.absolute_path("kernel", config.guest.kernel);
    guest.absolute_path("initramfs", config.guest.initramfs);

    Section defaults(root, "defaults", file_name);
    defaults.name("image", config.defaults.image);
    defaults.integer("cpus", config.defaults.cpus, 1, 64);
    defaults.size("memory", config.defaults.memory_bytes);
    defaults.size("disk", config.defaults.disk_bytes);
    defaults.duration("idle_timeout", config.defaults.idle_timeout, Section::Zero::never);

    Section limits(root, "limits", file_name);
    read_limits(limits, host, config);

    for (Section* section : {&vmm, &guest, &defaults, &limits}) {
        if (auto good = section->finish(); !good) {
            return fail(std::move(good).error());
        }
    }
    if (auto good = check_defaults(config, file_name); !good) {
        return fail(std::move(good).error());
    }
    return config;
}

Result<Config> load(const std::filesystem::path& path, const Host& host) {
    auto text = read_file(path, kMaxFileBytes);
    if (!text) {
        if (text.error().code == ErrorCode::not_found) {
            return defaults_for(host);
        }
        return fail(std::move(text).error());
    }
    return parse(*text, path.string(), host);
}

} // namespace wd::config
