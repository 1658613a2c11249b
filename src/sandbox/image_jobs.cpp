#include "sandbox/image_jobs.hpp"

#include "sandbox/unit_spec.hpp"
#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/log.hpp"
#include "util/size.hpp"
#include "util/text.hpp"

#include <charconv>

#include <fmt/format.h>

namespace wd::sandbox {
namespace {

constexpr std::string_view kUnitPrefix = "workdir-image-";
constexpr std::string_view kUnitSuffix = ".service";
constexpr std::chrono::seconds kKeepEnded{60};
constexpr std::chrono::seconds kQueryRetry{1};
// A base image and its tree while it is built.
constexpr std::uint64_t kBuildBytes = 2 * kGiB;

// workdir-image-<name>-<version>.service; a version has no '-' in it.
std::string unit_of(std::string_view name, std::string_view version) {
    return fmt::format("{}{}-{}{}", kUnitPrefix, name, version, kUnitSuffix);
}

std::pair<std::string, std::string> name_and_version_of(std::string_view unit) {
    unit.remove_prefix(std::min(kUnitPrefix.size(), unit.size()));
    unit.remove_suffix(std::min(kUnitSuffix.size(), unit.size()));
    const auto dash = unit.rfind('-');
    if (dash == std::string_view::npos) {
        return {};
    }
    return {std::string(unit.substr(0, dash)), std::string(unit.substr(dash + 1))};
}

} // namespace

std::string_view to_string(ImageJob::State state) {
    switch (state) {
    case ImageJob::State::running:
        return "running";
    case ImageJob::State::done:
        return "done";
    case ImageJob::State::failed:
        return "failed";
    case ImageJob::State::cancelled:
        return "cancelled";
    }
    return "";
}

std::pair<std::uint32_t, std::string> parse_status(std::string_view text) {
    std::uint32_t percent = 0;
    const auto [rest, ec] = std::from_chars(text.data(), text.data() + text.size(), percent);
    const std::string_view tail(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
    if (ec != std::errc() || percent > 100 || !tail.starts_with("% ")) {
        return {0, printable(text, 300)};
    }
    return {percent, printable(tail.substr(2), 300)};
}

struct ImageJobs::Entry {
    ImageJob job;
    bool started = false; // PID 1 has carried out the start
    bool cancelled = false;
    pid1::Units::Watch watch;
    event::Timer expiry;
    event::Timer retry; // of a question to PID 1
};

ImageJobs::ImageJobs(const event::Loop& loop, event::Worker& worker, pid1::Units& units,
                     image::ImageStore& images, Observer observer)
    : loop_(loop),
      worker_(worker),
      units_(units),
      images_(images),
      observer_(std::move(observer)) {}

ImageJobs::~ImageJobs() = default;

ImageJobs::Entry& ImageJobs::add(const std::string& name, const std::string& version) {
    auto entry = std::make_unique<Entry>();
    entry->job = {.number = next_number_++,
                  .name = name,
                  .version = version,
                  .unit = unit_of(name, version),
                  .status = "starting"};
    Entry& added = *entry;
    jobs_.emplace(added.job.number, std::move(entry));
    observer_.added(added.job);
    return added;
}

void ImageJobs::watch(Entry& entry) {
    entry.watch =
        units_.watch(entry.job.unit, [this, number = entry.job.number] { refresh(number); });
}

Result<const ImageJob*> ImageJobs::build(const std::string& name,
                                         std::uint64_t disk_reserve_bytes) {
    auto recipe = images_.recipe(name);
    if (!recipe) {
        return fail(std::move(recipe).error());
    }
    for (const auto& [number, entry] : jobs_) {
        if (entry->job.name == name && entry->job.state == ImageJob::State::running) {
            return fail(ErrorCode::wrong_state,
                        fmt::format("image {} is being built already, by {}", quote(name),
                                    entry->job.unit));
        }
    }
    auto space = disk_space(images_.folder());
    if (!space) {
        return fail(std::move(space).error());
    }
    if (space->free_bytes < disk_reserve_bytes + kBuildBytes) {
        return fail(ErrorCode::disk_full,
                    fmt::format("a build takes up to {}; {} are free below {} and {} of them are "
                                "kept in reserve (limits.disk_reserve in workdird.toml)",
                                format_size(kBuildBytes), format_size(space->free_bytes),
                                images_.folder().string(), format_size(disk_reserve_bytes)));
    }
    const std::string version = images_.new_version(name);
    Entry& entry = add(name, version);
    watch(entry);
    units_.start_transient(
        entry.job.unit,
        image_build_properties({.description = fmt::format("Workdir image build: {}", name),
                                .recipe = recipe->string(),
                                .images_dir = images_.folder().string(),
                                .name = name,
                                .version = version,
                                .staging = images_.staging(name, version).string()}),
        [this, number = entry.job.number](Result<void> started) {
            const auto at = jobs_.find(number);
            if (at == jobs_.end()) {
                return;
            }
            if (!started) {
                finish(*at->second, ImageJob::State::failed, started.error().message);
                return;
            }
            at->second->started = true;
            refresh(number);
        });
    return &entry.job;
}

void ImageJobs::refresh(std::uint32_t number) {
    const auto at = jobs_.find(number);
    if (at == jobs_.end() || !at->second->started) {
        return;
    }
    units_.query(at->second->job.unit, [this, number](Result<pid1::UnitState> state) {
        const auto again = jobs_.find(number);
        if (again == jobs_.end()) {
            return;
        }
        if (state) {
            on_state(*again->second, *state);
            return;
        }
        log::warning(fmt::format("{}: {}", again->second->job.unit, state.error().message));
        auto retry = event::Timer::create(loop_, kQueryRetry, [this, number] { refresh(number); });
        if (retry) {
            again->second->retry = std::move(*retry);
        }
    });
}

void ImageJobs::on_state(Entry& entry, const pid1::UnitState& state) {
    ImageJob& job = entry.job;
    if (job.state != ImageJob::State::running) {
        return;
    }
    if (!state.status_text.empty()) {
        const auto [percent, status] = parse_status(state.status_text);
        if (percent != job.percent || status != job.status) {
            job.percent = std::max(percent, job.percent);
            job.status = status;
            observer_.changed(job);
        }
    }
    if (!state.is_gone()) {
        return;
    }
    if (images_.find(job.name, job.version)) {
        finish(entry, ImageJob::State::done, fmt::format("{} {}", job.name, job.version));
    } else if (entry.cancelled) {
        finish(entry, ImageJob::State::cancelled, "cancelled; nothing was kept");
    } else {
        finish(entry, ImageJob::State::failed,
               fmt::format("{}; see journalctl -u {}", job.status, job.unit));
    }
    units_.reset_failed(job.unit, [](const Result<void>&) {});
}

void ImageJobs::finish(Entry& entry, ImageJob::State state, std::string status) {
    entry.job.state = state;
    entry.job.status = std::move(status);
    if (state == ImageJob::State::done) {
        entry.job.percent = 100;
    }
    log::notice(fmt::format("{}: {}: {}", entry.job.unit, to_string(state), entry.job.status));
    observer_.changed(entry.job);
    sweep();
    auto expiry = event::Timer::create(loop_, kKeepEnded, [this, number = entry.job.number] {
        observer_.removed(number);
        jobs_.erase(number);
    });
    if (expiry) {
        entry.expiry = std::move(*expiry);
    }
}

Result<void> ImageJobs::cancel(std::uint32_t number) {
    const auto at = jobs_.find(number);
    if (at == jobs_.end() || at->second->job.state != ImageJob::State::running) {
        return fail(ErrorCode::wrong_state, fmt::format("job {} has ended already", number));
    }
    at->second->cancelled = true;
    units_.stop(at->second->job.unit, [](const Result<void>&) {});
    return {};
}

const ImageJob* ImageJobs::find(std::uint32_t number) const {
    const auto at = jobs_.find(number);
    return at == jobs_.end() ? nullptr : &at->second->job;
}

void ImageJobs::reconcile(std::function<void()> done) {
    units_.list(std::string(kUnitPrefix) + "*" + std::string(kUnitSuffix),
                [this, done = std::move(done)](Result<std::vector<std::string>> names) {
                    for (const std::string& unit : names.value_or(std::vector<std::string>{})) {
                        const auto [name, version] = name_and_version_of(unit);
                        if (!check_name(name, "image name")) {
                            continue;
                        }
                        Entry& entry = add(name, version);
                        entry.started = true;
                        watch(entry);
                        refresh(entry.job.number);
                    }
                    sweep();
                    done();
                });
}

void ImageJobs::sweep() {
    std::vector<std::filesystem::path> keep;
    for (const auto& [number, entry] : jobs_) {
        if (entry->job.state == ImageJob::State::running) {
            keep.push_back(images_.staging(entry->job.name, entry->job.version));
        }
    }
    images_.discard_staging(keep);
    worker_.run([folder = images_.folder()] { return image::ImageStore::remove_trash(folder); },
                [](const Result<void>& removed) {
                    if (!removed) {
                        log::error(removed.error().message);
                    }
                });
}

} // namespace wd::sandbox
