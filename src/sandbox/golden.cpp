#include "sandbox/golden.hpp"

#include "sandbox/stamp.hpp"
#include "sandbox/unit_spec.hpp"
#include "util/file.hpp"
#include "util/ids.hpp"
#include "util/log.hpp"
#include "util/size.hpp"
#include "util/text.hpp"

#include <cerrno>
#include <charconv>
#include <chrono>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::sandbox {
namespace {

using namespace std::chrono_literals;

constexpr auto kSnapshotGrace = 60s; // from ready to the end, beyond the boot's own deadline

std::string title(const image::Image& image, const image::Shape& shape) {
    return fmt::format("{} {} {}", image.manifest.name, image.manifest.version, shape.name());
}

// What the host can give without taking it from anybody.
std::uint64_t memory_available() {
    const auto text = read_file("/proc/meminfo", 64 * kKiB);
    constexpr std::string_view kKey = "MemAvailable:";
    const auto at = text ? text->find(kKey) : std::string::npos;
    if (at == std::string::npos) {
        return 0;
    }
    const auto digit = text->find_first_of("0123456789", at);
    std::uint64_t kib = 0;
    std::from_chars(text->data() + digit, text->data() + text->size(), kib);
    return kib * kKiB;
}

} // namespace

struct Goldens::Making {
    image::Image image;
    image::Shape shape;
    image::SnapshotInfo info;
    std::filesystem::path staging;
    BootQueue::Ticket ticket;
    BootQueue::Place place;
    std::optional<DiskMaker> disk_maker;
    std::unique_ptr<Machine> machine;
    event::Timer guard;
    bool snapshotted = false;
};

Goldens::Goldens(const event::Loop& loop, event::Worker& worker, pid1::Units& units,
                 image::ImageStore& images, BootQueue& queue, const config::Config& config,
                 const Paths& paths)
    : loop_(loop),
      worker_(worker),
      units_(units),
      images_(images),
      queue_(queue),
      config_(config),
      paths_(paths) {}

Goldens::~Goldens() = default;

std::optional<image::Golden> Goldens::find(const image::Image& image, const image::Shape& shape) {
    if (!config_.vmm.golden) {
        return std::nullopt;
    }
    auto golden = image::find_golden(image, shape, golden_stamp(config_, image, shape));
    if (golden) {
        return std::move(*golden);
    }
    if (golden.error().code != ErrorCode::not_found) {
        log::notice(fmt::format("golden snapshot not used: {}", golden.error().message));
        (void)image::discard_golden(images_, image.folder / "golden" / shape.name());
        remove_trash();
    }
    return std::nullopt;
}

void Goldens::want(const image::Image& image, const image::Shape& shape) {
    const std::string key = title(image, shape);
    if (!config_.vmm.golden || failed_.contains(key)) {
        return;
    }
    for (const auto& making : wanted_) {
        if (title(making->image, making->shape) == key) {
            return;
        }
    }
    wanted_.push_back(std::make_unique<Making>(Making{.image = image, .shape = shape}));
    if (wanted_.size() == 1) {
        next();
    }
}

void Goldens::reject(const image::Golden& golden, std::string_view why) {
    log::warning(
        fmt::format("{}: a restore failed, so it is made anew: {}", golden.folder.string(), why));
    (void)image::discard_golden(images_, golden.folder);
    remove_trash();
}

void Goldens::sweep() {
    image::discard_golden_staging(images_);
    remove_trash();
}

void Goldens::remove_trash() {
    worker_.run([folder = images_.folder()] { return image::ImageStore::remove_trash(folder); },
                [](const Result<void>& removed) {
                    if (!removed) {
                        log::error(removed.error().message);
                    }
                });
}

void Goldens::next() {
    // It takes a place like any boot, so that a host with many creates is not loaded further.
    Making* const making = wanted_.front().get();
    auto ticket = queue_.enter([this, alive = std::weak_ptr(alive_)](BootQueue::Place place) {
        if (!alive.expired() && !wanted_.empty()) {
            wanted_.front()->place = std::move(place);
            begin();
        }
    });
    if (!wanted_.empty() && wanted_.front().get() == making) {
        making->ticket = std::move(ticket);
    }
}

void Goldens::begin() {
    Making& making = *wanted_.front();
    log::info(fmt::format("making the golden snapshot of {}", title(making.image, making.shape)));
    if (auto done = prepare(); !done) {
        finish(done);
    }
}

// Files first: the machine starts when its disk is there.
Result<void> Goldens::prepare() {
    Making& making = *wanted_.front();
    const std::uint64_t need = making.shape.memory_bytes + model::kMemoryOverheadBytes;
    if (const std::uint64_t there = memory_available(); there < need) {
        return fail(ErrorCode::limit,
                    fmt::format("{} of memory is available on this host, and it takes {}",
                                format_size(there), format_size(need)));
    }
    auto space = disk_space(images_.folder());
    if (!space) {
        return fail(std::move(space).error());
    }
    if (space->free_bytes < need + config_.limits.disk_reserve_bytes) {
        return fail(ErrorCode::disk_full,
                    fmt::format("{} is free on the disk, and it may take {}",
                                format_size(space->free_bytes), format_size(need)));
    }
    making.info.stamp = golden_stamp(config_, making.image, making.shape);
    making.staging = image::golden_staging(images_, making.image, making.shape);
    if (::mkdir(making.staging.c_str(), 0700) < 0) {
        return fail_errno(errno, fmt::format("make {}", making.staging.string()));
    }
    auto guard = event::Timer::create(loop_, config_.vmm.boot_timeout + kSnapshotGrace, [this] {
        if (Machine* const machine = wanted_.front()->machine.get()) {
            machine->kill(
                {.reason = model::EndReason::timeout, .detail = "it was not done in time"});
        } else {
            finish(fail(ErrorCode::timeout, "its disk was not made in time"));
        }
    });
    if (!guard) {
        return fail(std::move(guard).error());
    }
    auto maker = DiskMaker::start(loop_, making.staging / "disk.qcow2", making.shape.disk_bytes,
                                  [this](Result<void> made) {
                                      if (made) {
                                          made = launch();
                                      }
                                      if (!made) {
                                          finish(made);
                                      }
                                  });
    if (!maker) {
        return fail(std::move(maker).error());
    }
    making.disk_maker = std::move(*maker);
    making.guard = std::move(*guard);
    return {};
}

Result<void> Goldens::launch() {
    Making& making = *wanted_.front();
    auto guest = open_guest_files(config_);
    if (!guest) {
        return fail(std::move(guest).error());
    }
    std::vector<Fd> fds;
    const auto add = [&](const std::filesystem::path& path, int flags) -> Result<void> {
        auto fd = open_file(path, flags);
        if (!fd) {
            return fail(std::move(fd).error());
        }
        fds.push_back(std::move(*fd));
        return {};
    };
    auto opened = add("/dev/null", O_RDWR | O_APPEND);
    fds.push_back(std::move(guest->kernel));
    fds.push_back(std::move(guest->initramfs));
    for (const auto& [path, flags] : {std::pair(making.image.root(), O_RDONLY),
                                      std::pair(making.staging / "disk.qcow2", O_RDWR)}) {
        if (opened) {
            opened = add(path, flags);
        }
    }
    if (!opened) {
        return opened;
    }
    making.machine = std::make_unique<Machine>(
        loop_, units_, kUnit, paths_.control_socket("golden"),
        Machine::Listener{
            .on_phase = [](model::Phase) {},
            .on_ready = [this](const control::Ready& ready) { on_ready(ready); },
            .on_snapshotted =
                [this](const control::Snapshotted&) { wanted_.front()->snapshotted = true; },
            .on_snapshot_failed =
                [this](const std::string& why) {
                    wanted_.front()->machine->kill(
                        {.reason = model::EndReason::vmm_crash, .detail = why});
                },
            .on_gone = [this](const control::Ended& ended) { on_gone(ended); }});
    auto started = making.machine->start([&](int socket) {
        return vmm_unit_properties({.id = "golden",
                                    .description = fmt::format("Workdir golden snapshot of {}",
                                                               title(making.image, making.shape)),
                                    .accel = making.shape.accel,
                                    .cpus = making.shape.cpus,
                                    .memory_bytes = making.shape.memory_bytes,
                                    .disk_bytes = making.shape.disk_bytes,
                                    .tasks_max = config_.tasks_max,
                                    .control_socket = socket});
    });
    if (!started) {
        making.machine.reset();
        return started;
    }
    std::vector<int> borrowed;
    for (const Fd& fd : fds) {
        borrowed.push_back(fd.get());
    }
    auto launched = making.machine->launch(
        {.accel = making.shape.accel,
         .qemu = qemu_binary(config_, making.shape.accel),
         .cpus = making.shape.cpus,
         .memory_bytes = making.shape.memory_bytes,
         .layers = {{.qcow2 = false, .read_only = true}, {.qcow2 = true, .read_only = false}},
         .hostname = "golden",
         .machine_id = new_machine_id(),
         .boot_timeout_ms = static_cast<std::uint64_t>(config_.vmm.boot_timeout.count())},
        borrowed);
    if (!launched) {
        making.machine->kill(
            {.reason = model::EndReason::vmm_crash, .detail = launched.error().message});
    }
    return {}; // on_gone tells
}

void Goldens::on_ready(const control::Ready& ready) {
    Making& making = *wanted_.front();
    making.info.agent_version = printable(ready.agent_version, 64);
    making.info.kernel_release = printable(ready.kernel_release, 64);
    auto memory = open_file(making.staging / "memory", O_RDWR | O_CREAT | O_EXCL);
    auto state = open_file(making.staging / "state", O_WRONLY | O_CREAT | O_EXCL);
    auto asked = memory && state
                     ? making.machine->snapshot({.compact = true}, memory->get(), state->get())
                     : fail(!memory ? memory.error() : state.error());
    if (!asked) {
        making.machine->kill(
            {.reason = model::EndReason::vmm_crash, .detail = asked.error().message});
    }
}

void Goldens::on_gone(const control::Ended& ended) {
    Making& making = *wanted_.front();
    making.machine.reset();
    making.guard.reset();
    if (!making.snapshotted || ended.end.reason != model::EndReason::stopped) {
        finish(fail(ErrorCode::start_failed,
                    making.snapshotted || ended.end.reason != model::EndReason::stopped
                        ? ended.end.detail
                        : "its unit was stopped"));
        return;
    }
    worker_.run([staging = making.staging, image = making.image, shape = making.shape,
                 info = making.info] { return image::commit_golden(staging, image, shape, info); },
                [this, alive = std::weak_ptr(alive_)](const Result<void>& made) {
                    if (!alive.expired()) {
                        finish(made);
                    }
                });
}

void Goldens::finish(const Result<void>& made) {
    const std::unique_ptr<Making> done = std::move(wanted_.front());
    wanted_.pop_front();
    const std::string what = title(done->image, done->shape);
    if (made) {
        log::notice(fmt::format("golden snapshot of {} made", what));
        remove_trash(); // of one that it replaces
    } else {
        log::warning(fmt::format("no golden snapshot of {}, creates boot cold: {}", what,
                                 made.error().message));
        failed_.insert(what);
        if (!done->staging.empty()) {
            (void)image::discard_golden(images_, done->staging);
            remove_trash();
        }
    }
    if (!wanted_.empty()) {
        next();
    }
}

} // namespace wd::sandbox
