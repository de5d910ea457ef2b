// Runs numbered items on the threads of PyTorch's OpenMP runtime.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "arguments.h"

namespace toptheta {

// Calls function(item) for each item once. Threads take the next one from a queue, so that a busy core holds nobody up.
//
// No exception may leave a parallel region: the first is kept and thrown again here.
template <class Function>
void run_items(int64_t items, int64_t threads, RunInParallel run_in_parallel, const Function& function)
{
    struct Region {
        const Function& function;
        int64_t items;
        std::atomic<int64_t> next;
        std::atomic<bool> has_failed;
        std::exception_ptr failure;

        static void work(void* region) { static_cast<Region*>(region)->take_items(); }

        void take_items()
        {
            try {
                for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
                    function(item);
                }
            } catch (...) {
                if (!has_failed.exchange(true)) {
                    failure = std::current_exception();
                }
                next.store(items, std::memory_order_relaxed);
            }
        }
    };
    Region region{function, items, {}, {}, {}};
    const int64_t used = run_in_parallel == nullptr ? 1 : std::min(threads, items);
    if (used > 1) {
        run_in_parallel(Region::work, &region, static_cast<unsigned>(used), 0);
    } else {
        region.take_items();
    }
    if (region.failure) {
        std::rethrow_exception(region.failure);
    }
}

}  // namespace toptheta
