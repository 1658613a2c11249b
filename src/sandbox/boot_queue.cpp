#include "sandbox/boot_queue.hpp"

namespace wd::sandbox {

BootQueue::Place& BootQueue::Place::operator=(Place&& other) noexcept {
    if (this != &other) {
        leave();
        queue_ = std::exchange(other.queue_, nullptr);
    }
    return *this;
}

void BootQueue::Place::leave() {
    if (queue_ != nullptr) {
        std::exchange(queue_, nullptr)->free_one();
    }
}

BootQueue::Ticket BootQueue::enter(std::function<void(Place)> admitted) {
    auto ticket = std::make_shared<std::function<void(Place)>>(std::move(admitted));
    if (free_ > 0) {
        --free_;
        (*ticket)(Place(this));
    } else {
        waiting_.emplace_back(ticket);
    }
    return ticket;
}

void BootQueue::free_one() {
    while (!waiting_.empty()) {
        const Ticket next = waiting_.front().lock();
        waiting_.erase(waiting_.begin());
        if (next) {
            (*next)(Place(this));
            return;
        }
    }
    ++free_;
}

} // namespace wd::sandbox
