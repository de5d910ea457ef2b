// Runs the cores of a launch on host threads, a few at a time, and lets them wait for one another.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <vector>

namespace ascendc_host {

class CoreScheduler {
public:
    // run(core) returns false when the core was left by a fault of its own. meets(core): whether it takes part in
    // SyncAll.
    CoreScheduler(int64_t cores, int atATime, std::function<bool(int64_t)> run, std::function<bool(int64_t)> meets);

    void RunAll();  // returns when every core has ended

    enum class Meeting { kAllArrived, kSomeEnded, kSomeFaulted };
    // Waits until every core that meets has called it as often as this one. Once one of them has ended, the others
    // cannot meet any more; then it returns at once instead of waiting for ever.
    Meeting SyncAll(int64_t core);

    // Changes what cores wait for, and lets those go on whose `ready` holds then.
    void Change(const std::function<void()>& change);
    // Waits until `ready`; false when no core is left that could make it so. Calls of `ready` and `change` never
    // overlap; `take` is called at the end of the wait, before anything else can change.
    bool Await(const std::function<bool()>& ready, const std::function<void()>& take);

private:
    struct Waiter {
        const std::function<bool()>* ready;
        bool mayGo = false;
        bool failed = false;
    };

    void Work(int64_t core);
    void StopRunning();
    void FailIfStuck();
    Meeting Broken() const { return faulted_ ? Meeting::kSomeFaulted : Meeting::kSomeEnded; }

    const int64_t cores_;
    const int atATime_;
    const std::function<bool(int64_t)> run_;
    const std::function<bool(int64_t)> meets_;
    int64_t parties_ = 0;  // cores that meet

    std::mutex mutex_;
    std::condition_variable changed_;
    int running_ = 0;
    int64_t next_ = 0;
    int64_t ended_ = 0;
    int64_t partiesEnded_ = 0;
    int64_t arrived_ = 0;
    uint64_t meetings_ = 0;
    bool faulted_ = false;
    // cores that have met go on in their order, so that a run with one thread is repeatable
    std::set<int64_t> toResume_;
    std::vector<Waiter*> waiters_;
};

}  // namespace ascendc_host
