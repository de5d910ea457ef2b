// Flags between the cores of one block, and what a core knows of the others because of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>

#include "clock.h"
#include "core_layout.h"

namespace ascendc_host {

constexpr int kCrossCoreFlags = 11;      // ids 0 to 10; SyncAll uses the ones behind (asc-devkit, CrossCoreSetFlag)
constexpr uint32_t kMostPendingSets = 15;  // a flag counts to 15

// What a core of a block knows of all of them, itself included.
struct BlockKnowledge {
    using Counts = std::array<uint32_t, kCrossCoreFlags>;

    std::array<Clock, kMaxBlockCores> finished;
    std::array<Counts, kMaxBlockCores> waits = {};  // for each flag
    uint32_t epoch = 0;                             // SyncAll that are over

    void Join(const BlockKnowledge& other)
    {
        for (int core = 0; core < kMaxBlockCores; ++core) {
            finished[core].Join(other.finished[core]);
            for (int id = 0; id < kCrossCoreFlags; ++id) {
                waits[core][id] = std::max(waits[core][id], other.waits[core][id]);
            }
        }
        epoch = std::max(epoch, other.epoch);
    }
};

// The sets of a block's flags that nothing has waited for, oldest first. A flag of one receiver counts the sets of one
// sender: a cube core sets it for all vector cores of its block, and waits until all of them have set it (mode 2).
template <typename Setting>
class PendingSets {
public:
    std::deque<Setting>& From(int sender, int receiver, int flagId)
    {
        return sets_[(sender * kMaxBlockCores + receiver) * kCrossCoreFlags + flagId];
    }

private:
    std::array<std::deque<Setting>, kMaxBlockCores * kMaxBlockCores * kCrossCoreFlags> sets_;
};

struct FlagSetting {
    BlockKnowledge known;
    Where where;
};
using CrossCoreFlags = PendingSets<FlagSetting>;

}  // namespace ascendc_host
