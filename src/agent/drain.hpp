#pragma once
// Output that nobody wants any more. A background process may hold the pipes of an exec that is
// over: it goes on, and what it writes is thrown away, so it neither blocks nor gets SIGPIPE.

#include "agent/poller.hpp"

#include <memory>
#include <vector>

namespace wd::agent {

class Drains {
public:
    explicit Drains(Poller& poller);
    ~Drains();

    // Takes the read end of a pipe, not blocking, until its last writer is gone.
    void add(Fd pipe);
    // A bounded amount of work; true when there is more to do at once.
    bool run();

private:
    class Drain;
    Poller& poller_;
    Fd null_;
    std::vector<std::unique_ptr<Drain>> drains_; // oldest first
};

} // namespace wd::agent
