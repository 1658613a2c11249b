#include "agent/drain.hpp"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace wd::agent {
namespace {
// More than that, and the oldest writers do get SIGPIPE: descriptors of pid 1 are finite.
constexpr std::size_t kMost = 4096;
constexpr std::size_t kStep = 1024 * 1024;
} // namespace

class Drains::Drain final : public EventHandler {
public:
    Drain(Poller& poller, Fd pipe) {
        auto watched = Watched::create(poller, std::move(pipe), EPOLLIN, *this);
        if (watched) {
            pipe_ = std::move(*watched);
        }
    }
    bool open() const { return static_cast<bool>(pipe_); }
    void on_events(std::uint32_t) override { readable_ = true; }

    // True when there may be more.
    bool run(int null) {
        if (!readable_) {
            return false;
        }
        // splice(2) to /dev/null drops whole pages without looking at them.
        const ssize_t n = ::splice(pipe_.get(), nullptr, null, nullptr, kStep, SPLICE_F_NONBLOCK);
        if (n > 0) {
            return true;
        }
        readable_ = false;
        if (n == 0 || errno != EAGAIN) {
            pipe_.reset();
        }
        return false;
    }

private:
    Watched pipe_;
    bool readable_ = true;
};

Drains::Drains(Poller& poller)
    : poller_(poller), null_(::open("/dev/null", O_WRONLY | O_CLOEXEC)) {}

Drains::~Drains() = default;

void Drains::add(Fd pipe) {
    if (drains_.size() >= kMost) {
        drains_.erase(drains_.begin());
    }
    drains_.push_back(std::make_unique<Drain>(poller_, std::move(pipe)));
}

bool Drains::run() {
    bool more = false;
    for (const auto& drain : drains_) {
        more = drain->run(null_.get()) || more;
    }
    std::erase_if(drains_, [](const auto& drain) { return !drain->open(); });
    return more;
}

} // namespace wd::agent
