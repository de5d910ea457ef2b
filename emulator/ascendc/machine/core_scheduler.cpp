#include "core_scheduler.h"

#include <algorithm>
#include <thread>

namespace ascendc_host {

CoreScheduler::CoreScheduler(int64_t cores, int atATime, std::function<bool(int64_t)> run,
                             std::function<bool(int64_t)> meets)
    : cores_(cores), atATime_(atATime), run_(std::move(run)), meets_(std::move(meets))
{
    for (int64_t core = 0; core < cores; ++core) parties_ += meets_(core) ? 1 : 0;
}

void CoreScheduler::RunAll()
{
    std::vector<std::thread> threads;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        while (ended_ < cores_) {
            while (running_ < atATime_ && next_ < cores_) {
                ++running_;
                threads.emplace_back([this, core = next_++] { Work(core); });
            }
            changed_.wait(lock);
        }
    }
    for (std::thread& thread : threads) thread.join();
}

void CoreScheduler::Work(int64_t core)
{
    for (bool more = true; more;) {
        const bool sound = run_(core);
        std::lock_guard<std::mutex> lock(mutex_);
        ++ended_;
        partiesEnded_ += meets_(core) ? 1 : 0;
        faulted_ = faulted_ || !sound;
        more = next_ < cores_;
        if (more) {
            core = next_++;
        } else {
            StopRunning();
        }
        changed_.notify_all();
    }
}

CoreScheduler::Meeting CoreScheduler::SyncAll(int64_t core)
{
    std::unique_lock<std::mutex> lock(mutex_);
    if (partiesEnded_ > 0) return Broken();
    const uint64_t meeting = meetings_;
    if (++arrived_ == parties_) {
        arrived_ = 0;
        ++meetings_;
        for (int64_t i = 0; i < cores_; ++i) {
            if (meets_(i)) toResume_.insert(i);
        }
    }
    StopRunning();
    changed_.wait(lock, [&] { return meetings_ != meeting || partiesEnded_ > 0; });
    const bool met = meetings_ != meeting;
    if (!met) --arrived_;
    changed_.wait(lock, [&] { return running_ < atATime_ && (!met || *toResume_.begin() == core); });
    if (met) toResume_.erase(core);
    ++running_;
    changed_.notify_all();
    return met ? Meeting::kAllArrived : Broken();
}

void CoreScheduler::Change(const std::function<void()>& change)
{
    std::lock_guard<std::mutex> lock(mutex_);
    change();
    for (Waiter* waiter : waiters_) waiter->mayGo = waiter->mayGo || (*waiter->ready)();
    changed_.notify_all();
}

bool CoreScheduler::Await(const std::function<bool()>& ready, const std::function<void()>& take)
{
    std::unique_lock<std::mutex> lock(mutex_);
    if (!ready()) {
        Waiter self{&ready};
        waiters_.push_back(&self);
        StopRunning();
        changed_.wait(lock, [&] { return (self.mayGo || self.failed) && running_ < atATime_; });
        waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &self));
        ++running_;
        changed_.notify_all();
        if (!self.mayGo) return false;
    }
    take();
    return true;
}

void CoreScheduler::StopRunning()
{
    --running_;
    FailIfStuck();
    changed_.notify_all();
}

// No core runs, none is left to start and none may go on: what the others wait for never comes.
void CoreScheduler::FailIfStuck()
{
    const bool broken = arrived_ > 0 && partiesEnded_ > 0;  // cores at a SyncAll that go on to report it
    if (running_ > 0 || next_ < cores_ || !toResume_.empty() || broken) return;
    for (const Waiter* waiter : waiters_) {
        if (waiter->mayGo || waiter->failed) return;
    }
    for (Waiter* waiter : waiters_) waiter->failed = true;
}

}  // namespace ascendc_host
