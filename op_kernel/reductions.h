// Reductions of a row of scores to one value per head, and small fills.
#pragma once

#include "kernel_common.h"

namespace toptheta {

enum class Reduction { kSum, kMax };

template <Reduction kKind>
TOPTHETA_DEVICE inline void ReduceBlocks(const LocalTensor<float>& to, const LocalTensor<float>& from, uint32_t repeats,
                                         uint32_t lanes)
{
    if constexpr (kKind == Reduction::kSum) {
        AscendC::BlockReduceSum(to, from, repeats, lanes, 1, 1, 8);
    } else {
        AscendC::BlockReduceMax(to, from, repeats, lanes, 1, 1, 8);
    }
}

// Where a reduction leaves its results: each kind has one value per head.
enum PerHeadSlot : uint32_t { kFirstResult = 0, kSecondResult = kBlockFloats };

// perHead[at + i] = sum or maximum of up to 64 values of row i, whose rows lie one behind the other
template <Reduction kKind>
TOPTHETA_DEVICE inline void ReduceToHead(UbMap& ub, const LocalTensor<float>& values, uint32_t count, uint32_t at,
                                         uint32_t rows = 1)
{
    PipeBarrier<PIPE_V>();
    if constexpr (kKind == Reduction::kSum) {
        AscendC::WholeReduceSum(ub.PerHead()[at], values, static_cast<int32_t>(count), static_cast<int32_t>(rows), 1, 1,
                                static_cast<int32_t>(count / kBlockFloats));
    } else {
        AscendC::WholeReduceMax(ub.PerHead()[at], values, static_cast<int32_t>(count), static_cast<int32_t>(rows), 1, 1,
                                static_cast<int32_t>(count / kBlockFloats), AscendC::ReduceOrder::ORDER_ONLY_VALUE);
    }
}

// The same for a multiple of 64 up to 2048: 8 to 1 at a time until 64 are left.
template <Reduction kKind>
TOPTHETA_DEVICE inline void ReduceRow(UbMap& ub, const LocalTensor<float>& row, uint32_t count, uint32_t head,
                                      PerHeadSlot slot = kFirstResult)
{
    LocalTensor<float> first = ub.Spread<float>();
    LocalTensor<float> second = ub.ReduceSecond();
    const uint32_t eighths = count / 8;
    PipeBarrier<PIPE_V>();
    ReduceBlocks<kKind>(first, row, count / kLanes, kLanes);
    if (eighths <= kLanes) {
        ReduceToHead<kKind>(ub, first, eighths, slot + head);
        return;
    }
    PipeBarrier<PIPE_V>();
    const uint32_t full = eighths / kLanes;
    ReduceBlocks<kKind>(second, first, full, kLanes);
    if (eighths % kLanes > 0) {
        ReduceBlocks<kKind>(second[full * kBlockFloats], first[full * kLanes], 1, eighths % kLanes);
    }
    ReduceToHead<kKind>(ub, second, count / kLanes, slot + head);
}

// perHeadBlocks[head] = a 32-byte block of perHead[head], for `slots` slots from `first` on
TOPTHETA_DEVICE inline LocalTensor<float> SpreadPerHead(UbMap& ub, PerHeadSlot first = kFirstResult, uint8_t slots = 1)
{
    LocalTensor<float> blocks = ub.PerHeadBlocks();
    PipeBarrier<PIPE_V>();
    AscendC::Brcb(blocks, ub.PerHead()[first], slots, AscendC::BrcbRepeatParams(1, 8));
    PipeBarrier<PIPE_V>();
    return blocks;
}

// perHead[slot + head] = sum or maximum of `count` values of each head, whose rows lie one behind the other. One to
// three instructions for all heads; in the order of ReduceRow.
template <Reduction kKind>
TOPTHETA_DEVICE inline void ReduceRows(UbMap& ub, const LocalTensor<float>& rows, uint32_t count, PerHeadSlot slot)
{
    const uint32_t heads = ub.Heads();
    if (count == kLanes) {
        ReduceToHead<kKind>(ub, rows, count, slot, heads);
        return;
    }
    const bool twice = count > kLanes * kBlockFloats;
    if (heads == 1 || (twice && count % (kLanes * kBlockFloats) > 0)) {
        for (uint32_t head = 0; head < heads; head++) {
            ReduceRow<kKind>(ub, rows[head * count], count, head, slot);
        }
        return;
    }
    LocalTensor<float> parts = ub.Spread<float>();
    uint32_t left = count / kBlockFloats;
    PipeBarrier<PIPE_V>();
    ReduceBlocks<kKind>(parts, rows, heads * count / kLanes, kLanes);
    if (twice) {
        PipeBarrier<PIPE_V>();
        ReduceBlocks<kKind>(ub.ReduceFirst(), parts, heads * left / kLanes, kLanes);
        parts = ub.ReduceFirst();
        left /= kBlockFloats;
    }
    ReduceToHead<kKind>(ub, parts, left, slot, heads);
}

// Fills up the last 64 lanes of `rows` rows that hold `count` values each and lie `pitch` values apart.
TOPTHETA_DEVICE inline void FillTails(const LocalTensor<float>& to, uint32_t rows, uint32_t pitch, uint32_t count,
                                      float value)
{
    const uint32_t inRepeat = count % kLanes;
    if (inRepeat > 0) {
        uint64_t mask[2] = {~static_cast<uint64_t>(0) << inRepeat, 0};
        AscendC::Duplicate(to[count - inRepeat], value, mask, static_cast<uint8_t>(rows), 1,
                           static_cast<uint8_t>(pitch / kBlockFloats));
    }
}

// row[i] -= block, where `block` holds one value eight times
TOPTHETA_DEVICE inline void SubtractBlock(const LocalTensor<float>& to, const LocalTensor<float>& row,
                                          const LocalTensor<float>& block, uint32_t count)
{
    AscendC::Sub(to, row, block, kLanes, static_cast<uint8_t>(count / kLanes),
                 AscendC::BinaryRepeatParams(1, 1, 0, 8, 8, 0));
}

// Values of a row that one instruction takes together with the rows of all other heads.
constexpr uint32_t kJointRow = kLanes * kBlockFloats;

// The block of each head eight times, one for every 64 values of its row.
TOPTHETA_DEVICE inline LocalTensor<float> BlocksOfRows(UbMap& ub, const LocalTensor<float>& blocks)
{
    const LocalTensor<float> copies = ub.Spread<float>();
    AscendC::Adds(copies, blocks, 0.0f, kLanes, static_cast<uint8_t>(ub.Heads()),
                  AscendC::UnaryRepeatParams(1, 0, 8, 1));
    PipeBarrier<PIPE_V>();
    return copies;
}

// `repeats` times 64 values, each with a block of its own
TOPTHETA_DEVICE inline AscendC::BinaryRepeatParams BlockForEachRepeat() { return {1, 1, 0, 8, 8, 1}; }

enum class BlockOperation { kMultiply, kDivide, kAdd };

template <BlockOperation kOperation>
TOPTHETA_DEVICE inline void ApplyBlock(const LocalTensor<float>& to, const LocalTensor<float>& row,
                                       const LocalTensor<float>& block, uint64_t lanes, uint8_t repeats,
                                       const AscendC::BinaryRepeatParams& strides)
{
    if constexpr (kOperation == BlockOperation::kMultiply) {
        AscendC::Mul(to, row, block, lanes, repeats, strides);
    } else if constexpr (kOperation == BlockOperation::kAdd) {
        AscendC::Add(to, row, block, lanes, repeats, strides);
    } else {
        AscendC::Div(to, row, block, lanes, repeats, strides);
    }
}

// to[i] = row[i] * block, row[i] / block or row[i] + block
template <BlockOperation kOperation>
TOPTHETA_DEVICE inline void WithBlock(const LocalTensor<float>& to, const LocalTensor<float>& row,
                                      const LocalTensor<float>& block, uint32_t count)
{
    const AscendC::BinaryRepeatParams strides(1, 1, 0, 8, 8, 0);
    for (uint32_t done = 0; done < count;) {
        const uint32_t repeats = Most((count - done) / kLanes, 1);
        const uint32_t lanes = Least(kLanes, count - done);
        ApplyBlock<kOperation>(to[done], row[done], block, lanes, static_cast<uint8_t>(repeats), strides);
        done += repeats * lanes;
    }
}

// The same for all heads, whose rows of `count` values and whose blocks lie one behind the other.
template <BlockOperation kOperation>
TOPTHETA_DEVICE inline void WithBlocks(const LocalTensor<float>& rows, const LocalTensor<float>& blocks, uint32_t heads,
                                       uint32_t count)
{
    if (heads <= CeilDiv(count, kLanes)) {
        for (uint32_t head = 0; head < heads; head++) {
            WithBlock<kOperation>(rows[head * count], rows[head * count], blocks[head * kBlockFloats], count);
        }
        return;
    }
    const uint8_t step = static_cast<uint8_t>(count / kBlockFloats);
    const AscendC::BinaryRepeatParams strides(1, 1, 0, step, step, 1);
    for (uint32_t column = 0; column < count; column += kLanes) {
        const uint32_t lanes = Least(kLanes, count - column);
        ApplyBlock<kOperation>(rows[column], rows[column], blocks, lanes, static_cast<uint8_t>(heads), strides);
    }
}

}  // namespace toptheta
