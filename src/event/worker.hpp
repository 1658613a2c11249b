#pragma once
// Worker: one thread for work that blocks (removing large files, fsync of many). A job gets copies,
// never references to the loop's state; its completion runs in the loop.

#include "event/sources.hpp"
#include "util/fd.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace wd::event {

class Worker {
public:
    static Result<std::unique_ptr<Worker>> create(const Loop& loop);
    // Finishes the job that runs; queued ones are dropped, and no completion comes any more.
    ~Worker();

    using Job = std::function<Result<void>()>;
    using Completion = std::function<void(Result<void>)>;
    void run(Job job, Completion completion);

private:
    Worker() = default;
    void work();
    void deliver();

    struct Item {
        Job job;
        Completion completion;
    };
    struct Finished {
        Completion completion;
        Result<void> result;
    };
    std::mutex mutex_; // guards the three below
    std::deque<Item> queue_;
    std::vector<Finished> finished_;
    bool quit_ = false;
    std::condition_variable wake_;
    Fd done_; // eventfd
    Io io_;
    std::thread thread_;
};

} // namespace wd::event
