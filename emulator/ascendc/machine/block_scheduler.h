// Runs the blocks of a launch on host threads, a few at a time, and lets them meet at SyncAll.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>

namespace ascendc_host {

class BlockScheduler {
public:
    // run(block) returns false when the block was left by a fault of its own.
    BlockScheduler(int64_t blocks, int atATime, std::function<bool(int64_t)> run);

    void RunAll();  // returns when every block has ended

    enum class Meeting { kAllArrived, kSomeEnded, kSomeFaulted };
    // Waits until every block has called it as often as this one. Once a block has ended, the others cannot meet any
    // more; then it returns at once instead of waiting for ever.
    Meeting SyncAll(int64_t block);

private:
    void Work(int64_t block);
    Meeting Broken() const { return faulted_ ? Meeting::kSomeFaulted : Meeting::kSomeEnded; }

    const int64_t blocks_;
    const int atATime_;
    const std::function<bool(int64_t)> run_;

    std::mutex mutex_;
    std::condition_variable changed_;
    int running_ = 0;
    int64_t next_ = 0;
    int64_t ended_ = 0;
    int64_t waiting_ = 0;
    uint64_t meetings_ = 0;
    bool faulted_ = false;
    // blocks that have met go on in their order, so that a run with one thread is repeatable
    std::set<int64_t> toResume_;
};

}  // namespace ascendc_host
