// What each core does to global memory between two SyncAll, and what goes wrong between cores because of it.
#pragma once

#include <cstdint>
#include <vector>

#include "finding_log.h"
#include "gm_memory.h"
#include "types.h"

namespace ascendc_host {

// An epoch is the time between two SyncAll. Only buffers that a kernel may write are logged.
struct GmAccess {
    int buffer;
    uint32_t epoch;
    bool write;
    uint64_t begin;
    uint64_t end;
    const char* call;
    Where where;
    int slot;        // the instruction on its core
    uint32_t seq;
    uint32_t knows;  // what the core knew of the others of its block: an index into its knowledge
};

// Bytes that the scalar unit wrote into its data cache in one epoch and cleaned out in a later one, or never.
struct CachedWrite {
    static constexpr uint32_t kNever = ~0u;
    int buffer;
    uint64_t begin;
    uint64_t end;
    uint32_t writtenIn;
    uint32_t cleanedIn;
    Where where;
};

// A cache line from its fill to its removal; `lastRead` counts reads that were served from the cache.
struct CachedLine {
    int buffer;
    uint64_t line;  // offset / 64
    uint32_t filledIn;
    uint32_t removedIn;
    uint64_t readBytes;  // bit per byte: read in an epoch after the fill
    uint32_t lastRead;
    bool dirty;
    Where where;  // of the last read, or of the write when dirty
};

class AccessLog {
public:
    // exact: whether accesses of different instructions are kept apart, as flags between cores demand
    explicit AccessLog(bool exact) : exact_(exact) {}

    void Add(const GmAccess& access);
    void NextEpoch(uint32_t knows)
    {
        ++epoch_;
        knewAtSyncAll.push_back(knows);
    }
    void AdvanceTo(uint32_t epoch) { epoch_ = epoch > epoch_ ? epoch : epoch_; }
    uint32_t Epoch() const { return epoch_; }

    std::vector<GmAccess> accesses;
    std::vector<CachedWrite> cachedWrites;
    std::vector<CachedLine> cachedLines;
    std::vector<uint32_t> knewAtSyncAll;  // by number of the SyncAll, an index into the core's knowledge

private:
    const bool exact_;
    uint32_t epoch_ = 0;
};

}  // namespace ascendc_host
