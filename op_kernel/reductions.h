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

// Where ReduceRow leaves its result: each kind has one value per head.
enum PerHeadSlot : uint32_t { kFirstResult = 0, kSecondResult = kBlockFloats };

// perHead[slot + head] = sum or maximum of up to 64 values
template <Reduction kKind>
TOPTHETA_DEVICE inline void ReduceToHead(UbMap& ub, const LocalTensor<float>& values, uint32_t count, uint32_t at)
{
    PipeBarrier<PIPE_V>();
    if constexpr (kKind == Reduction::kSum) {
        AscendC::WholeReduceSum(ub.PerHead()[at], values, static_cast<int32_t>(count), 1, 1, 1, 8);
    } else {
        AscendC::WholeReduceMax(ub.PerHead()[at], values, static_cast<int32_t>(count), 1, 1, 1, 8,
                                AscendC::ReduceOrder::ORDER_ONLY_VALUE);
    }
}

// The same for a multiple of 64 up to 1024: 8 to 1 at a time until 64 are left.
template <Reduction kKind>
TOPTHETA_DEVICE inline void ReduceRow(UbMap& ub, const LocalTensor<float>& row, uint32_t count, uint32_t head,
                                      PerHeadSlot slot = kFirstResult)
{
    LocalTensor<float> first = ub.ReduceFirst();
    LocalTensor<float> second = ub.ReduceSecond();
    const uint32_t eighths = count / 8;
    PipeBarrier<PIPE_V>();
    ReduceBlocks<kKind>(first, row, count / kLanes, kLanes);
    if (eighths <= kLanes) {
        ReduceToHead<kKind>(ub, first, eighths, slot + head);
        return;
    }
    PipeBarrier<PIPE_V>();
    ReduceBlocks<kKind>(second, first, 1, kLanes);
    ReduceBlocks<kKind>(second[kBlockFloats], first[kLanes], 1, eighths - kLanes);
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

// Sets lanes [from, to) of a row; `to` is a multiple of 64.
TOPTHETA_DEVICE inline void FillTail(const LocalTensor<float>& row, uint32_t from, uint32_t to, float value)
{
    const uint32_t inRepeat = from % kLanes;
    if (inRepeat > 0) {
        uint64_t mask[2] = {~static_cast<uint64_t>(0) << inRepeat, 0};
        AscendC::Duplicate(row[from - inRepeat], value, mask, 1, 1, 8);
        from += kLanes - inRepeat;
    }
    if (from < to) {
        AscendC::Duplicate(row[from], value, static_cast<int32_t>(to - from));
    }
}

// row[i] -= block, where `block` holds one value eight times
TOPTHETA_DEVICE inline void SubtractBlock(const LocalTensor<float>& to, const LocalTensor<float>& row,
                                          const LocalTensor<float>& block, uint32_t count)
{
    AscendC::Sub(to, row, block, kLanes, static_cast<uint8_t>(count / kLanes),
                 AscendC::BinaryRepeatParams(1, 1, 0, 8, 8, 0));
}

enum class BlockOperation { kMultiply, kDivide };

// to[i] = row[i] * block or row[i] / block, for any count that is a multiple of 16
template <BlockOperation kOperation>
TOPTHETA_DEVICE inline void WithBlock(const LocalTensor<float>& to, const LocalTensor<float>& row,
                                      const LocalTensor<float>& block, uint32_t count)
{
    const AscendC::BinaryRepeatParams strides(1, 1, 0, 8, 8, 0);
    for (uint32_t done = 0; done < count;) {
        const uint32_t repeats = Most((count - done) / kLanes, 1);
        const uint32_t lanes = Least(kLanes, count - done);
        if constexpr (kOperation == BlockOperation::kMultiply) {
            AscendC::Mul(to[done], row[done], block, lanes, static_cast<uint8_t>(repeats), strides);
        } else {
            AscendC::Div(to[done], row[done], block, lanes, static_cast<uint8_t>(repeats), strides);
        }
        done += repeats * lanes;
    }
}

}  // namespace toptheta
