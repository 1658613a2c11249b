#pragma once
// Builds of image versions: each in a transient unit of its own, which goes on without workdird.
// Progress is the unit's status text ("37% installing packages", sd_notify STATUS=), so that
// systemctl status shows it too and a restarted workdird finds it again.

#include "event/sources.hpp"
#include "event/worker.hpp"
#include "image/image_store.hpp"
#include "pid1/units.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace wd::sandbox {

struct ImageJob {
    enum class State { running, done, failed, cancelled };
    std::uint32_t number = 0;
    std::string name;    // of the image
    std::string version; // that is made
    std::string unit;
    State state = State::running;
    std::uint32_t percent = 0;
    std::string status; // what it does; at the end, what came of it
};
std::string_view to_string(ImageJob::State state);

// "37% installing packages" -> 37 and the rest; without a percentage, 0 and all of it.
std::pair<std::uint32_t, std::string> parse_status(std::string_view text);

class ImageJobs {
public:
    struct Observer {
        std::function<void(const ImageJob&)> added;
        std::function<void(const ImageJob&)> changed;
        std::function<void(std::uint32_t number)> removed; // a while after the end
    };
    ImageJobs(const event::Loop& loop, event::Worker& worker, pid1::Units& units,
              image::ImageStore& images, Observer observer);
    ~ImageJobs();

    // Error: not_found (no recipe), wrong_state (a build of that name runs), disk_full.
    Result<const ImageJob*> build(const std::string& name, std::uint64_t disk_reserve_bytes);
    Result<void> cancel(std::uint32_t number); // error: wrong_state when it has ended
    const ImageJob* find(std::uint32_t number) const;

    // Removes, in the worker, what is out of sight: discarded versions, staging folders of dead
    // builds.
    void sweep();

    // After a start of workdird: takes over builds that run, removes what others have left.
    void reconcile(std::function<void()> done);

private:
    struct Entry;
    Entry& add(const std::string& name, const std::string& version);
    void watch(Entry& entry);
    void refresh(std::uint32_t number);
    void on_state(Entry& entry, const pid1::UnitState& state);
    void finish(Entry& entry, ImageJob::State state, std::string status);

    const event::Loop& loop_;
    event::Worker& worker_;
    pid1::Units& units_;
    image::ImageStore& images_;
    Observer observer_;
    std::map<std::uint32_t, std::unique_ptr<Entry>> jobs_;
    std::uint32_t next_number_ = 1;
};

} // namespace wd::sandbox
