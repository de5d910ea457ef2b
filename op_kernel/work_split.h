// Splits the rows of all sequences evenly over the vector cores.
//
// The work is one flat list of granules of 128 rows, ordered by (sequence, KV head, head block, row). Core c of A takes
// granules [G*c/A, G*(c+1)/A), rounded to the nearest, so that no core has more than one granule above another. A unit
// (sequence, KV head, head block) may be cut between cores; a core touches at most two cut units, its first and its
// last. Where the cores divide evenly among units of one length, granules have 32 rows: nobody gets a sliver of a unit.
// Where two cores share keys, each pair of them is one in all this, and so are its two head blocks: each core takes
// one. Plain integer functions, compiled by the kernel and by host tests alike.
#pragma once

#include <cstdint>

#ifndef TOPTHETA_DEVICE
#define TOPTHETA_DEVICE
#endif

namespace toptheta {

constexpr uint32_t kGranuleRows = 128;
constexpr uint32_t kFineGranuleRows = 32;
// A core that gets fewer of the former costs more in the combination of partial results than it saves.
constexpr uint32_t kMinimumGranules = 2;

TOPTHETA_DEVICE inline uint32_t GranulesOf(uint32_t rows, uint32_t granuleRows = kGranuleRows)
{
    return (rows + granuleRows - 1) / granuleRows;
}

// Cores that get work: all of them unless their share would fall below the minimum.
TOPTHETA_DEVICE inline uint32_t ActiveCores(uint64_t granules, uint32_t cores)
{
    const uint64_t useful = granules / kMinimumGranules;
    if (useful >= cores) {
        return cores;
    }
    return useful > 0 ? static_cast<uint32_t>(useful) : 1;
}

// Granules of all units, the cores that share them, and whether all sequences have the same number of granules.
struct WorkTotal {
    uint64_t granules;
    uint32_t granuleRows;
    uint32_t activeCores;
    uint32_t uniform;
};

// `rowsOf(b)` gives the valid rows of sequence b.
template <typename RowsOf>
TOPTHETA_DEVICE inline WorkTotal TotalWork(uint32_t batch, uint32_t unitsPerSequence, uint32_t cores, RowsOf& rowsOf)
{
    WorkTotal total = {0, kGranuleRows, 1, 1};
    const uint32_t first = rowsOf(0);
    bool equal = true;
    for (uint32_t b = 0; b < batch; b++) {
        const uint32_t rows = rowsOf(b);
        const uint32_t granules = GranulesOf(rows);
        equal = equal && rows == first;
        total.uniform = total.uniform && granules == GranulesOf(first);
        total.granules += static_cast<uint64_t>(granules) * unitsPerSequence;
    }
    total.activeCores = ActiveCores(total.granules, cores);
    const uint32_t units = batch * unitsPerSequence;
    if (equal && total.activeCores % units == 0) {
        total.granules = static_cast<uint64_t>(GranulesOf(first, kFineGranuleRows)) * units;
        total.granuleRows = kFineGranuleRows;
    }
    return total;
}

TOPTHETA_DEVICE inline uint64_t FirstGranule(uint64_t granules, uint32_t activeCores, uint32_t core)
{
    return core < activeCores ? (2 * granules * core + activeCores) / (2 * activeCores) : granules;
}

// The core whose range holds a granule.
TOPTHETA_DEVICE inline uint32_t CoreOf(uint64_t granule, uint64_t granules, uint32_t activeCores)
{
    return static_cast<uint32_t>((2 * granule * activeCores + activeCores - 1) / (2 * granules));
}

// Whether some unit may be cut: not where all are alike and every core that works gets the same number of them.
TOPTHETA_DEVICE inline bool AnyCut(const WorkTotal& total, uint32_t units)
{
    return !total.uniform || units % total.activeCores != 0;
}

// Rows [rowBegin, rowEnd) of one unit, as one core works on them.
struct Segment {
    uint32_t batch;
    uint32_t kvHead;
    uint32_t headBlock;
    uint32_t rowBegin;
    uint32_t rowEnd;
    uint32_t unitRows;  // valid rows of the sequence
    uint32_t firstCore;  // the cores that share the unit; equal when it is whole
    uint32_t lastCore;
};

TOPTHETA_DEVICE inline bool IsWhole(const Segment& segment) { return segment.firstCore == segment.lastCore; }

// The segments of one core, in order.
template <typename RowsOf>
class SegmentIterator {
public:
    // `sharers` cores are one `core`, of which this is number `own`.
    TOPTHETA_DEVICE inline SegmentIterator(const WorkTotal& total, uint32_t core, uint32_t kvHeads, uint32_t headBlocks,
                                           RowsOf& rowsOf, uint32_t sharers = 1, uint32_t own = 0)
        : rowsOf_(rowsOf),
          granules_(total.granules),
          granuleRows_(total.granuleRows),
          activeCores_(total.activeCores),
          kvHeads_(kvHeads),
          headBlocks_(headBlocks),
          sharers_(sharers),
          own_(own),
          next_(FirstGranule(total.granules, activeCores_, core)),
          end_(FirstGranule(total.granules, activeCores_, core + 1))
    {}

    TOPTHETA_DEVICE inline bool Next(Segment& segment)
    {
        if (next_ >= end_) {
            return false;
        }
        FindSequence();
        const uint32_t inSequence = static_cast<uint32_t>(next_ - sequenceBegin_);
        const uint32_t unit = inSequence / unitGranules_;
        const uint64_t unitBegin = sequenceBegin_ + static_cast<uint64_t>(unit) * unitGranules_;
        const uint64_t unitEnd = unitBegin + unitGranules_;
        const uint64_t stop = unitEnd < end_ ? unitEnd : end_;
        segment.batch = sequence_;
        segment.kvHead = unit / headBlocks_;
        segment.headBlock = unit % headBlocks_ * sharers_ + own_;
        segment.rowBegin = static_cast<uint32_t>(next_ - unitBegin) * granuleRows_;
        segment.rowEnd = static_cast<uint32_t>(stop - unitBegin) * granuleRows_;
        segment.rowEnd = segment.rowEnd < rows_ ? segment.rowEnd : rows_;
        segment.unitRows = rows_;
        segment.firstCore = CoreOf(unitBegin, granules_, activeCores_);
        segment.lastCore = CoreOf(unitEnd - 1, granules_, activeCores_);
        next_ = stop;
        return true;
    }

private:
    // Moves on to the sequence that holds granule next_.
    TOPTHETA_DEVICE inline void FindSequence()
    {
        while (next_ >= sequenceEnd_) {
            sequence_ = started_ ? sequence_ + 1 : 0;
            started_ = true;
            rows_ = rowsOf_(sequence_);
            unitGranules_ = GranulesOf(rows_, granuleRows_);
            sequenceBegin_ = sequenceEnd_;
            sequenceEnd_ += static_cast<uint64_t>(unitGranules_) * kvHeads_ * headBlocks_;
        }
    }

    RowsOf& rowsOf_;
    uint64_t granules_;
    uint32_t granuleRows_;
    uint32_t activeCores_;
    uint32_t kvHeads_;
    uint32_t headBlocks_;
    uint32_t sharers_;
    uint32_t own_;
    uint64_t next_;
    uint64_t end_;
    uint64_t sequenceBegin_ = 0;
    uint64_t sequenceEnd_ = 0;
    uint32_t sequence_ = 0;
    uint32_t rows_ = 0;
    uint32_t unitGranules_ = 1;
    bool started_ = false;
};

}  // namespace toptheta
