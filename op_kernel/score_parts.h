// Products of int8 K rows with the high and the low parts of the queries (query_parts.h), joined to scores.
//
// A product is a sum of at most 512 terms of at most 127 * 128 or 128 * 128, so its magnitude is at most 2^23, and
// float32 holds it as it is. 256 * high + low is rounded once, by at most 2^-24 of itself, and so is its product with
// the scale.
#pragma once

#include "chunk.h"
#include "query_slots.h"
#include "reductions.h"

namespace toptheta {

// `products`: [part][head][row], `pitch` from a line to the next. The sums take the place of the low parts.
TOPTHETA_DEVICE inline void JoinParts(UbMap& ub, const LocalTensor<float>& products, uint32_t pitch, uint32_t rows)
{
    // of whole blocks, all lines are taken at once; what lies behind the rows of others must not be read
    const bool joint = rows == pitch;
    const uint32_t lines = joint ? 1 : ub.Heads();
    const uint32_t count = joint ? ub.Heads() * pitch : rows;
    const LocalTensor<float> low = products[ub.Heads() * pitch];
    for (uint32_t line = 0; line < kQueryParts * lines; line++) {
        const LocalTensor<float> numbers = products[line * (joint ? count : pitch)];
        AscendC::Cast(numbers, numbers.template ReinterpretCast<int32_t>(), AscendC::RoundMode::CAST_NONE, count);
    }
    PipeBarrier<PIPE_V>();
    for (uint32_t line = 0; line < lines; line++) {
        AscendC::Axpy(low[line * pitch], products[line * pitch], kPartBase, static_cast<int32_t>(count));
    }
}

// Makes the scores of these sums, which may lie where the scores will. `byRow`: the K rows have scales of their own.
TOPTHETA_DEVICE inline void ScaleSums(UbMap& ub, const LocalTensor<float>& sums, uint32_t pitch, uint32_t scoreRow,
                                      uint32_t rows, bool byRow)
{
    const bool joint = IsJoint(ub, scoreRow) && rows == kJointRow && pitch == kJointRow;
    if (joint) {
        AscendC::Mul(ub.Scores(0, scoreRow, ub.Heads() * rows), sums, BlocksOfRows(ub, ub.State(kScoreScale)), kLanes,
                     static_cast<uint8_t>(ub.Heads() * kBlockFloats), BlockForEachRepeat());
    }
    for (uint32_t head = 0; head < ub.Heads() && !joint; head++) {
        WithBlock<BlockOperation::kMultiply>(ub.Scores(head, scoreRow, AlignUp(rows, kBlockFloats)), sums[head * pitch],
                                             ub.State(kScoreScale)[head * kBlockFloats], rows);
    }
    if (byRow) {
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub.Heads(); head++) {
            const LocalTensor<float> scores = ub.Scores(head, scoreRow, AlignUp(rows, kBlockFloats));
            AscendC::Mul(scores, scores, ub.ArrivedScales(), static_cast<int32_t>(rows));
        }
    }
}

}  // namespace toptheta
