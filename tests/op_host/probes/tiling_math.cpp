// The tiling maths without CANN or its stand-ins, as C functions for ctypes.
#include "tiling_math.h"

namespace {

struct EqualRows {
    uint32_t rows;
    uint32_t operator()(uint32_t) const { return rows; }
};

}  // namespace

extern "C" {

uint32_t ScoreRowsOf(uint32_t group, uint32_t headDim, uint32_t bfloat16)
{
    return toptheta::MakeUbLayout({headDim, toptheta::HeadBlockFor(group, headDim), bfloat16 != 0, true}).scoreRows;
}

void ChoiceOf(uint32_t headDim, uint32_t headBlock, uint32_t bfloat16, uint32_t twoPhases, uint32_t cube,
              uint32_t* choice)
{
    const toptheta::LayoutChoice chosen =
        toptheta::ChooseLayout({headDim, headBlock, bfloat16 != 0, twoPhases != 0, cube != 0},
                               cube != 0 ? toptheta::kCubeChunkRows : toptheta::kMostInt8ChunkRows);
    choice[0] = chosen.slots;
    choice[1] = chosen.chunkRows;
}

// For each unit, when every sequence has `rows` rows: segments that are all of it, and segments that are a part of it,
// over all cores; and the cores that have any. Returns whether the kernel lets the cores meet.
uint32_t SegmentsOfUnits(uint32_t batch, uint32_t kvHeads, uint32_t headBlocks, uint32_t rows, uint32_t cores,
                         uint32_t* whole, uint32_t* parts, uint32_t* atWork)
{
    EqualRows rowsOf = {rows};
    const toptheta::WorkTotal total = toptheta::TotalWork(batch, kvHeads * headBlocks, cores, rowsOf);
    for (uint32_t core = 0; core < cores; core++) {
        toptheta::SegmentIterator<EqualRows> iterator(total, core, kvHeads, headBlocks, rowsOf);
        bool works = false;
        for (toptheta::Segment segment; iterator.Next(segment);) {
            const uint32_t unit = (segment.batch * kvHeads + segment.kvHead) * headBlocks + segment.headBlock;
            (toptheta::IsWhole(segment) ? whole : parts)[unit]++;
            works = true;
        }
        *atWork += works ? 1 : 0;
    }
    return toptheta::AnyCut(total, batch * kvHeads * headBlocks);
}

}  // extern "C"
