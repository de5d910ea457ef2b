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
    void Read(int buffer, uint64_t begin, uint64_t end, const char* call, Where where);
    void Write(int buffer, uint64_t begin, uint64_t end, const char* call, Where where);
    void NextEpoch() { ++epoch_; }
    uint32_t Epoch() const { return epoch_; }

    std::vector<GmAccess> accesses;
    std::vector<CachedWrite> cachedWrites;
    std::vector<CachedLine> cachedLines;

private:
    void Append(const GmAccess& access);

    uint32_t epoch_ = 0;
};

// logs[block]: reports races between cores and stale or shared cache lines.
void CheckBetweenCores(const std::vector<const AccessLog*>& logs, const GmMemory& memory, FindingLog& findings);

}  // namespace ascendc_host
