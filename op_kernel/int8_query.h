// Queries of int8 K: q . (s k) is (q s) . k, so the scales of the channels go into the query, once for each head.
//
// The products take float16, whose range q s may leave. So a power of two is taken out of each head first, which rounds
// nothing, and the factor of its scores gets it back.
#pragma once

#include "reductions.h"

namespace toptheta {

constexpr uint32_t kExponentBits = 0x7f800000;  // of a float32
constexpr float kSmallestPower = 1.1754943508e-38f;  // for a query of zeros

// perHead[head] = the largest magnitude of the head's `count` numbers, a multiple of 32 up to 512
TOPTHETA_DEVICE inline void LargestMagnitudes(UbMap& ub, const LocalTensor<float>& wide, uint32_t heads, uint32_t count)
{
    const LocalTensor<float> magnitudes = ub.Partials()[kPartialBytes / sizeof(float) / 2];
    const LocalTensor<float> eighths = ub.ReduceFirst();
    AscendC::Abs(magnitudes, wide, static_cast<int32_t>(heads * count));
    for (uint32_t head = 0; head < heads; head++) {
        const LocalTensor<float> row = magnitudes[head * count];
        const uint32_t full = count / kLanes;
        PipeBarrier<PIPE_V>();
        if (full > 0) {
            ReduceBlocks<Reduction::kMax>(eighths, row, full, kLanes);
        }
        if (count % kLanes > 0) {
            ReduceBlocks<Reduction::kMax>(eighths[full * kBlockFloats], row[full * kLanes], 1, count % kLanes);
        }
        ReduceToHead<Reduction::kMax>(ub, eighths, count / kBlockFloats, head);
    }
}

// Divides each head by the largest power of two that is in it, and puts the factor of its scores into the state.
TOPTHETA_DEVICE inline void TakePowersOut(UbMap& ub, const LocalTensor<float>& wide, uint32_t heads, uint32_t count,
                                          float scaleValue)
{
    LargestMagnitudes(ub, wide, heads, count);
    const LocalTensor<float> powers = ub.PerHead();
    const LocalTensor<int32_t> exponents = ub.Spread<int32_t>();
    AscendC::Duplicate(exponents, static_cast<int32_t>(kExponentBits), static_cast<int32_t>(kBlockFloats));
    PipeBarrier<PIPE_V>();
    const LocalTensor<uint16_t> bits = powers.ReinterpretCast<uint16_t>();
    AscendC::And(bits, bits, exponents.ReinterpretCast<uint16_t>(), static_cast<int32_t>(2 * kBlockFloats));
    PipeBarrier<PIPE_V>();
    AscendC::Maxs(powers, powers, kSmallestPower, static_cast<int32_t>(kBlockFloats));
    const LocalTensor<float> blocks = SpreadPerHead(ub);
    AscendC::Muls(ub.State(kScoreScale), blocks, scaleValue, static_cast<int32_t>(ub.StateCount()));
    WithBlocks<BlockOperation::kDivide>(wide, blocks, heads, count);
}

// Queries as QueryKeyProduct<int8_t> wants them: float16, and the first 16 columns four times in float32.
template <typename Q>
TOPTHETA_DEVICE inline void FoldScales(UbMap& ub, const LocalTensor<Q>& raw, const TilingData& tiling, uint32_t heads,
                                       bool byChannel)
{
    const uint32_t headDim = tiling.headDim;
    const LocalTensor<float> wide = ub.Partials();
    AscendC::Cast(wide, raw, AscendC::RoundMode::CAST_NONE, heads * headDim);
    PipeBarrier<PIPE_V>();
    for (uint32_t head = 0; head < heads && byChannel; head++) {
        AscendC::Mul(wide[head * headDim], wide[head * headDim], ub.KeyChannels(headDim),
                     static_cast<int32_t>(headDim));
    }
    PipeBarrier<PIPE_V>();
    TakePowersOut(ub, wide, heads, headDim, tiling.scaleValue);
    PipeBarrier<PIPE_V>();
    AscendC::Cast(ub.Query<half>(heads * headDim), wide, AscendC::RoundMode::CAST_RINT, heads * headDim);
    const AscendC::UnaryRepeatParams fourTimes(2, 0, kLanes / kBlockFloats, headDim / kBlockFloats);
    for (uint32_t half = 0; half < 2; half++) {
        AscendC::Adds(ub.FirstColumns(0, heads)[half * kBlockFloats], wide[half * kBlockFloats], 0.0f, kLanes / 2,
                      static_cast<uint8_t>(heads), fourTimes);
    }
}

}  // namespace toptheta
