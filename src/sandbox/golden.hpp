#pragma once
// Goldens: the golden snapshots of this host. Finds the one for a create, and makes those that are
// missing: one at a time, in the background, in a unit confined like a sandbox's.

#include "config/config.hpp"
#include "event/worker.hpp"
#include "image/golden.hpp"
#include "sandbox/accel_probe.hpp"
#include "sandbox/boot_queue.hpp"
#include "sandbox/files.hpp"
#include "sandbox/machine.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace wd::sandbox {

class Goldens {
public:
    static constexpr const char* kUnit = "workdir-golden.service";

    Goldens(const event::Loop& loop, event::Worker& worker, pid1::Units& units,
            image::ImageStore& images, BootQueue& queue, const config::Config& config,
            const Paths& paths);
    ~Goldens();

    // The one a create can be restored from, if any. What does not fit this host any more is put
    // out of sight.
    std::optional<image::Golden> find(const image::Image& image, const image::Shape& shape);

    // To be made, unless it is there, is being made, or could not be made before (since the start
    // of workdird).
    void want(const image::Image& image, const image::Shape& shape);

    // A restore from it has failed: it is not used again.
    void reject(const image::Golden& golden, std::string_view why);

    // After a start of workdird: what an earlier one was making.
    void sweep();

private:
    struct Making;
    void next();
    void begin();
    Result<void> prepare();
    Result<void> launch();
    void on_ready(const control::Ready& ready);
    void on_gone(const control::Ended& ended);
    void finish(const Result<void>& made);
    void remove_trash();

    const event::Loop& loop_;
    event::Worker& worker_;
    pid1::Units& units_;
    image::ImageStore& images_;
    BootQueue& queue_;
    const config::Config& config_;
    const Paths& paths_;
    std::deque<std::unique_ptr<Making>> wanted_; // the first is being made
    std::set<std::string> failed_;               // image, version and shape
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace wd::sandbox
