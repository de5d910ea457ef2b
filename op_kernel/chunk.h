// A chunk of rows on its way through the threshold test: where its scores lie, and the list that it leaves.
#pragma once

#include "kernel_common.h"

namespace toptheta {

// What a core knows about one head of the block.
struct HeadResult {
    uint32_t kept = 0;
    int32_t bestRow = -1;     // row of the largest score, known only while nothing is kept
    bool bestListed = false;  // whether another head of the block keeps that row
    float bestScore = kLowest;
};

// Rows [begin, begin + rows) of a sequence; their scores lie from `scoreRow` on.
struct Chunk {
    uint32_t begin;
    uint32_t rows;
    uint32_t scoreRow;
};

// Where the scales of the rows of a chunk begin in a ring of scales, if each row has one.
struct ChunkScales {
    bool perRow = false;
    uint32_t at = 0;

    // How many of `rows` lie in front of the end of the ring.
    TOPTHETA_DEVICE inline uint32_t Ahead(const UbLayout& layout, uint32_t rows) const
    {
        return Least(rows, ScaleRows(layout) - at);
    }
};

// The rows whose V rows one chunk needs.
struct RowList {
    uint32_t chunkBegin = 0;   // the row of the sequence that has number 0
    uint32_t kept = 0;         // rows that any head of the block keeps
    uint32_t count = 0;        // rows to fetch: those, or all of the chunk
    uint32_t tileRows = 1;     // of them in each V tile, an even number
    uint32_t weightsAt = 0;    // where their weights begin
    uint32_t weightPitch = 0;  // from the weights of a head to those of the next
    bool dense = false;
    bool apart = false;  // masks of the entries are made for each head, weightPitch bits from one to the next
};

// Weights of one head, from an entry of the list on.
TOPTHETA_DEVICE inline LocalTensor<float> WeightsOf(UbMap& ub, const RowList& list, uint32_t head, uint32_t entry = 0)
{
    return ub.Weights()[list.weightsAt + head * list.weightPitch + entry];
}

// Whether the scores of all heads of a chunk lie one behind the other, so that one instruction takes them all: not
// where post-softmax keeps those of a whole segment.
TOPTHETA_DEVICE inline bool IsJoint(const UbMap& ub, uint32_t scoreRow)
{
    return ub.Heads() > 1 && ub.Layout().scoreRows == ub.Layout().chunkRows &&
           (scoreRow == 0 || scoreRow == ub.SecondScores());
}

// Lanes from the exponentials and masks of a head to those of the next.
TOPTHETA_DEVICE inline uint32_t PitchOf(const UbMap& ub, const Chunk& chunk)
{
    return ub.Heads() > 1 ? ub.Layout().chunkRows : AlignUp(chunk.rows, kLanes);
}

// Lanes of a head that hold scores, or what stands for none.
TOPTHETA_DEVICE inline uint32_t LanesOf(const UbMap& ub, const Chunk& chunk)
{
    return IsJoint(ub, chunk.scoreRow) ? PitchOf(ub, chunk) : AlignUp(chunk.rows, kLanes);
}

TOPTHETA_DEVICE inline LocalTensor<float> ScoresOf(UbMap& ub, uint32_t head, const Chunk& chunk)
{
    return ub.Scores(head, chunk.scoreRow, LanesOf(ub, chunk));
}

// Whether lanes that hold no scores may be scaled with the scores of their chunk: they stay finite, and far below them.
TOPTHETA_DEVICE inline bool MayScaleFreeLanes(float scale) { return scale > 5e-20f && scale <= 1.0f; }

// No free lane is above it, and real scores are. A little above what free lanes become, so that no rounding matters.
template <typename Key>
TOPTHETA_DEVICE inline float LowestLimit(float scale)
{
    return !IsInt8<Key>::kValue && MayScaleFreeLanes(scale) ? kLowest * 0.9999f * scale : kLowest;
}

// Before the scores of a chunk arrive: lanes that they leave free hold kLowest.
TOPTHETA_DEVICE inline void ClearScores(UbMap& ub, uint32_t scoreRow, uint32_t rows)
{
    const uint32_t chunkRows = ub.Layout().chunkRows;
    if (IsJoint(ub, scoreRow) && rows < chunkRows) {
        AscendC::Duplicate(ub.Scores(0, scoreRow, ub.Heads() * chunkRows), kLowest,
                           static_cast<int32_t>(ub.Heads() * chunkRows));
    }
}

}  // namespace toptheta
