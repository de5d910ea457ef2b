// What a run leaves behind for the timeline: per core, the instructions in the order in which they were issued.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "clock.h"
#include "core_layout.h"
#include "types.h"

namespace ascendc_host {

// A line of the L2; docs, page on cache coherence.
constexpr uint32_t kL2LineBytes = 512;

enum class RecordKind : uint8_t {
    kScalar,
    kCompute,  // V, M, MTE1
    kDma,
    kSetFlag,
    kWaitFlag,
    kBarrier,
    kBarrierAll,
    kSyncAll,
    kCrossCoreSet,
    kCrossCoreWait,
};

struct Record {
    RecordKind kind = RecordKind::kScalar;
    uint8_t slot = kScalar;    // the pipe that executes it
    uint8_t other = kScalar;   // flags: the other pipe
    uint8_t eventId = 0;       // or the cross-core flag
    ScalarAccess scalar = ScalarAccess::kIssueOnly;
    int16_t gmBuffer = -1;     // DMA: which argument
    bool inWorkspace = false;  // DMA: that argument is the workspace
    bool pastL2 = false;       // DMA: with the hint to go past the L2
    uint16_t readersBefore = 0;  // reads: cores before this one that read the same line of the L2 in the launch
    uint16_t restOfLine = 0;     // reads of rows shorter than a line: the bytes that are missing
    uint32_t narrowRows = 0;     // how many of them lie apart
    uint32_t gmLine = 0;         // reads: the first line of 512 bytes in its argument
    uint32_t cacheLine = 0;      // of the scalar unit: the first line of 64 bytes in its argument
    uint32_t seq = 0;          // instructions: the number on their pipe, from 1
    float minimumCycles = 0;   // DMA: what it takes at least, whatever the rate
    float repeats = 0;
    float cyclesPerRepeat = 0;
    bool gathersMask = false;  // a GatherMask, whose repeats have a constant of their own
    float conflicts = 0;
    uint64_t gmBytes = 0;
};

struct Issue {
    const char* call;
    Where where;
};

struct CoreTrace {
    CoreSeat seat = {};
    std::vector<Record> records;
    std::array<std::vector<Issue>, kSlots> issues;  // [slot][seq - 1]

    const Issue& IssueOf(int slot, uint32_t seq) const { return issues[slot][seq - 1]; }
};

}  // namespace ascendc_host
