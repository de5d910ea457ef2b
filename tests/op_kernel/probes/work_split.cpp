// The work split as C functions for ctypes.
#include "work_split.h"

namespace {

struct Lengths {
    const uint32_t* rows;
    uint32_t operator()(uint32_t sequence) const { return rows[sequence]; }
};

}  // namespace

extern "C" {

void TotalOf(const uint32_t* rows, uint32_t batch, uint32_t unitsPerSequence, uint32_t cores, uint64_t* granules,
             uint32_t* others)
{
    Lengths lengths = {rows};
    const toptheta::WorkTotal total = toptheta::TotalWork(batch, unitsPerSequence, cores, lengths);
    *granules = total.granules;
    others[0] = total.granuleRows;
    others[1] = total.activeCores;
    others[2] = total.uniform;
}

uint32_t AnyCutOf(const uint32_t* rows, uint32_t batch, uint32_t unitsPerSequence, uint32_t cores)
{
    Lengths lengths = {rows};
    const toptheta::WorkTotal total = toptheta::TotalWork(batch, unitsPerSequence, cores, lengths);
    return toptheta::AnyCut(total, batch * unitsPerSequence);
}

// Writes at most `capacity` segments of a core and returns how many there are.
uint32_t SegmentsOf(const uint32_t* rows, uint32_t batch, uint32_t kvHeads, uint32_t headBlocks, uint32_t cores,
                    uint32_t core, toptheta::Segment* segments, uint32_t capacity)
{
    Lengths lengths = {rows};
    const toptheta::WorkTotal total = toptheta::TotalWork(batch, kvHeads * headBlocks, cores, lengths);
    toptheta::SegmentIterator<Lengths> iterator(total, core, kvHeads, headBlocks, lengths);
    uint32_t count = 0;
    for (toptheta::Segment segment; iterator.Next(segment); count++) {
        if (count < capacity) {
            segments[count] = segment;
        }
    }
    return count;
}

}  // extern "C"
