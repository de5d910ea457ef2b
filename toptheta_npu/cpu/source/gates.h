// What items of work wait for until others have made it. Nobody waits but for what an earlier item of the queue makes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace toptheta {

class Gates {
public:
    explicit Gates(int64_t count) : are_open_(new std::atomic<bool>[static_cast<size_t>(count)])
    {
        for (int64_t gate = 0; gate < count; ++gate) {
            are_open_[gate].store(false, std::memory_order_relaxed);
        }
    }

    void open(int64_t gate) { are_open_[gate].store(true, std::memory_order_release); }
    // Whether the gate is open now; false: the step was given up.
    bool wait_for(int64_t gate) const
    {
        return wait_until([&] { return are_open_[gate].load(std::memory_order_acquire); });
    }

    // The same of any condition that another thread makes true.
    template <class Condition>
    bool wait_until(const Condition& is_met) const
    {
        while (!is_met()) {
            if (is_given_up_.load(std::memory_order_relaxed)) {
                return false;
            }
            std::this_thread::yield();
        }
        return true;
    }

    // Lets nobody wait for what will not come, after an exception.
    void give_up() { is_given_up_.store(true, std::memory_order_relaxed); }

private:
    std::unique_ptr<std::atomic<bool>[]> are_open_;
    std::atomic<bool> is_given_up_{false};
};

}  // namespace toptheta
