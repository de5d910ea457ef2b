// Where descriptors come from and go to.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>

#include "descriptors.h"

namespace acl_emulator {

// Descriptors are made in one thread and destroyed in another. Memory that is freed in another thread than it comes
// from makes both wait for each other, so it is passed back without a lock.
template <typename T>
class Pool {
public:
    static Pool& Get()
    {
        static auto* pool = new Pool;
        return *pool;
    }

    T* Take()
    {
        const std::lock_guard lock(mutex_);
        if (graves_.size() <= kGraveyard) Collect();
        if (graves_.size() <= kGraveyard) return new T;
        T* oldest = graves_.front();
        graves_.pop_front();
        oldest->destroyed = false;
        return oldest;
    }

    // False for one that has been given back before.
    bool GiveBack(T* descriptor)
    {
        if (descriptor->destroyed.exchange(true)) return false;
        descriptor->next = given_.load();
        while (!given_.compare_exchange_weak(descriptor->next, descriptor)) {
        }
        return true;
    }

private:
    static constexpr size_t kGraveyard = 2000;  // destroyed ones that do not become new ones yet

    void Collect()
    {
        const size_t before = graves_.size();
        for (Descriptor* each = given_.exchange(nullptr); each != nullptr; each = each->next) {
            graves_.push_back(static_cast<T*>(each));
        }
        std::reverse(graves_.begin() + before, graves_.end());  // the last one came first
    }

    std::mutex mutex_;
    std::deque<T*> graves_;
    std::atomic<Descriptor*> given_{nullptr};
};

}  // namespace acl_emulator
