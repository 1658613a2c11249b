#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace wd::sandbox {

// At most `parallel` boots at a time; the others wait in order.
class BootQueue {
public:
    explicit BootQueue(std::uint32_t parallel) : free_(parallel) {}

    // Holds a place until it is destroyed.
    class Place {
    public:
        Place() = default;
        explicit Place(BootQueue* queue) : queue_(queue) {}
        Place(Place&& other) noexcept : queue_(std::exchange(other.queue_, nullptr)) {}
        Place& operator=(Place&& other) noexcept;
        ~Place() { leave(); }

    private:
        void leave();
        BootQueue* queue_ = nullptr;
    };
    // Calls back at once where there is room. A ticket that is dropped before leaves the queue.
    using Ticket = std::shared_ptr<std::function<void(Place)>>;
    Ticket enter(std::function<void(Place)> admitted);

private:
    void free_one();
    std::uint32_t free_;
    std::vector<std::weak_ptr<std::function<void(Place)>>> waiting_;
};

} // namespace wd::sandbox
