#pragma once
// All execs: opens them from their request frames, reaps processes, lets their output take turns.

#include "agent/exec.hpp"

#include <memory>
#include <vector>

namespace wd::agent {

// Each takes about ten descriptors and up to a megabyte in pipes.
inline constexpr std::size_t kMaxChannels = 256;

class ExecTable {
public:
    explicit ExecTable(const Exec::Parts& parts) : parts_(parts) {}

    void set_environment(std::vector<std::string> env) { env_ = std::move(env); }
    // From now on every open fails with this message; empty: opens are served.
    void refuse(std::string why) { refusal_ = std::move(why); }

    // A frame of a channel other than 0.
    void on_frame(const wire::Frame& frame);
    // Reaps all processes that ended, those of nobody too. False: pid 1 has no child left.
    bool reap();
    // Puts output into the port's queue and sends it, round robin; true when there is more to do
    // at once.
    bool pump();

    std::uint64_t deadline() const;
    void on_time(std::uint64_t now);

    void orphan_all();
    void sweep(); // drops those that are over

private:
    struct Opening { // a request of which not all pieces have come
        std::uint32_t channel;
        std::vector<std::byte> request;
        bool too_large = false;
    };
    void on_open(const wire::Frame& frame);
    void open(Opening opening);
    void open_failed(std::uint32_t channel, const wire::Failure& failure);
    Exec* find(std::uint32_t channel);

    Exec::Parts parts_;
    std::vector<std::string> env_;
    std::string refusal_ = "the sandbox is not set up yet";
    std::vector<Opening> openings_;
    std::vector<std::unique_ptr<Exec>> execs_;
    std::size_t turn_ = 0;
};

} // namespace wd::agent
