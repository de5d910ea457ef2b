#include "block_scheduler.h"

#include <thread>
#include <vector>

namespace ascendc_host {

BlockScheduler::BlockScheduler(int64_t blocks, int atATime, std::function<bool(int64_t)> run)
    : blocks_(blocks), atATime_(atATime), run_(std::move(run)) {}

void BlockScheduler::RunAll() {
    std::vector<std::thread> threads;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        while (ended_ < blocks_) {
            while (running_ < atATime_ && next_ < blocks_) {
                ++running_;
                threads.emplace_back([this, block = next_++] { Work(block); });
            }
            changed_.wait(lock);
        }
    }
    for (std::thread& thread : threads) thread.join();
}

void BlockScheduler::Work(int64_t block) {
    for (bool more = true; more;) {
        const bool sound = run_(block);
        std::lock_guard<std::mutex> lock(mutex_);
        ++ended_;
        faulted_ = faulted_ || !sound;
        more = next_ < blocks_;
        if (more) {
            block = next_++;
        } else {
            --running_;
        }
        changed_.notify_all();
    }
}

BlockScheduler::Meeting BlockScheduler::SyncAll(int64_t block) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (ended_ > 0) return Broken();
    const uint64_t meeting = meetings_;
    if (++waiting_ == blocks_) {
        waiting_ = 0;
        ++meetings_;
        for (int64_t i = 0; i < blocks_; ++i) toResume_.insert(i);
    }
    --running_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return meetings_ != meeting || ended_ > 0; });
    const bool met = meetings_ != meeting;
    if (!met) --waiting_;
    changed_.wait(lock, [&] { return running_ < atATime_ && (!met || *toResume_.begin() == block); });
    if (met) toResume_.erase(block);
    ++running_;
    changed_.notify_all();
    return met ? Meeting::kAllArrived : Broken();
}

}  // namespace ascendc_host
