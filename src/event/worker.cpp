#include "event/worker.hpp"

#include <cerrno>

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace wd::event {

Result<std::unique_ptr<Worker>> Worker::create(const Loop& loop) {
    std::unique_ptr<Worker> worker(new Worker);
    worker->done_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!worker->done_) {
        return fail_errno(errno, "eventfd");
    }
    auto io = Io::create(loop, worker->done_.get(), EPOLLIN,
                         [self = worker.get()](std::uint32_t) { self->deliver(); });
    if (!io) {
        return fail(std::move(io).error());
    }
    worker->io_ = std::move(*io);
    // Signals are the loop's: the thread starts with all of them blocked.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    worker->thread_ = std::thread([self = worker.get()] { self->work(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return worker;
}

Worker::~Worker() {
    {
        const std::lock_guard lock(mutex_);
        quit_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Worker::run(Job job, Completion completion) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back({std::move(job), std::move(completion)});
    }
    wake_.notify_one();
}

void Worker::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return quit_ || !queue_.empty(); });
        if (quit_) {
            return;
        }
        Item item = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        Result<void> result = item.job();
        lock.lock();
        finished_.push_back({std::move(item.completion), std::move(result)});
        const std::uint64_t one = 1;
        (void)!::write(done_.get(), &one, sizeof one);
    }
}

void Worker::deliver() {
    std::uint64_t count = 0;
    (void)!::read(done_.get(), &count, sizeof count);
    std::vector<Finished> finished;
    {
        const std::lock_guard lock(mutex_);
        finished.swap(finished_);
    }
    for (Finished& item : finished) {
        item.completion(std::move(item.result));
    }
}

} // namespace wd::event
