// Reductions inside blocks, pairs and whole repeats.
//
// Sums go as a binary tree over neighbouring lanes (asc-devkit docs, ReduceDataBlock and ReduceRepeat), each addition
// rounded to the type; lanes outside the mask take no part. A result without any lane is not written.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "library_calls.h"
#include "vector_lanes.h"

namespace ascendc_host {

// A value of a reduction with the lane it came from.
template <typename T>
struct Reduced {
    T value{};
    uint32_t lane = 0;
    bool any = false;
};

struct SumStep {
    template <typename T>
    Reduced<T> operator()(const Reduced<T>& a, const Reduced<T>& b) const
    {
        return {static_cast<T>(static_cast<float>(a.value) + static_cast<float>(b.value)), a.lane, true};
    }
};

// Of equal values the first lane wins.
struct MaxStep {
    template <typename T>
    Reduced<T> operator()(const Reduced<T>& a, const Reduced<T>& b) const
    {
        return b.value > a.value ? b : a;
    }
};

// Reduces lanes [first, first + count) of one repeat; count is a power of two.
template <uint32_t count, typename T, typename Step>
Reduced<T> ReduceTree(const LaneCursor<T>& from, const LaneBits& bits, uint32_t repeat, uint32_t first, Step step)
{
    std::array<Reduced<T>, count> level;
    for (uint32_t i = 0; i < count; ++i) {
        const uint32_t lane = first + i;
        level[i].lane = lane;
        level[i].any = bits.Group(lane, 1) != 0;
        if (level[i].any) level[i].value = LoadLanes<T, 1>(from.At(repeat, lane))[0];
    }
    for (uint32_t left = count; left > 1; left /= 2) {
        for (uint32_t i = 0; i < left / 2; ++i) {
            const Reduced<T>& a = level[2 * i];
            const Reduced<T>& b = level[2 * i + 1];
            level[i] = a.any && b.any ? step(a, b) : a.any ? a : b;
        }
    }
    return level[0];
}

// Where the results of a reduction go: in each repeat one slot of `slotBytes` for every `lanesPerSlot` lanes.
struct ReduceTarget {
    VectorOperand operand;
    uint32_t slotBytes = 0;
    uint32_t lanesPerSlot = 0;
    uint32_t repeatBytes = 0;
    uint32_t alignment = 32;

    uint64_t Offset(uint32_t repeat, uint32_t slot) const
    {
        return static_cast<uint64_t>(repeat) * repeatBytes + slot * slotBytes;
    }

    // A slot whose lanes are all masked out keeps what it has.
    bool Writes(const LaneBits& bits, uint32_t slot) const
    {
        return lanesPerSlot >= 64 ? !bits.None() : bits.Group(slot * lanesPerSlot, lanesPerSlot) != 0;
    }

    uint64_t End(const VectorShape& shape) const
    {
        uint64_t end = 0;
        for (uint32_t repeat = 0; repeat < shape.repeats; ++repeat) {
            for (uint32_t slot = 0; slot < shape.lanes / lanesPerSlot; ++slot) {
                if (Writes(shape.BitsOf(repeat), slot)) end = std::max(end, Offset(repeat, slot) + slotBytes);
            }
        }
        return end;
    }
};

template <typename T>
ReduceTarget TargetOf(const AscendC::LocalTensor<T>& dst, uint32_t slotBytes, uint32_t lanesPerSlot,
                      uint32_t repeatBytes, uint32_t alignment)
{
    ReduceTarget target;
    target.operand = Operand<T>("dstLocal", dst, 1, 1);
    target.slotBytes = slotBytes;
    target.lanesPerSlot = lanesPerSlot;
    target.repeatBytes = repeatBytes;
    target.alignment = alignment;
    return target;
}

inline bool CheckReduceStrides(const CallSite& site, int32_t dstRepeat, int32_t sourceBlock, int32_t sourceRepeat)
{
    const auto fits = [](int32_t stride) { return stride >= 0 && stride <= 65535; };
    if (fits(dstRepeat) && fits(sourceBlock) && fits(sourceRepeat)) return true;
    site.Report(Check::kParameter,
                "strides are " + std::to_string(dstRepeat) + ", " + std::to_string(sourceBlock) + " and " +
                    std::to_string(sourceRepeat),
                "give strides from 0 to 65535");
    return false;
}

// result(bits, repeat, slot, bytes) computes one slot.
template <VectorOp op, typename T, typename Result>
void RunReduce(const CallSite& site, const VectorShape& shape, const Operand<T>& from, const ReduceTarget& target,
               Result result)
{
    Instruction instruction(Pipe::kV, site.call, site.where);
    const uint64_t end = target.End(shape);
    CheckOperand<Access::kRead>(instruction, from, shape);
    CheckFinite(site, from, shape);
    instruction.CheckAligned(target.operand.view, target.alignment, target.operand.name);
    const uint32_t base = instruction.CheckSpan(target.operand.view, 0, end, target.operand.name);
    RequireDisjoint(site, target.operand, {0, end}, from, SpanOf(from, shape));
    uint8_t* memory = Core::Current().Local(base);
    for (uint32_t repeat = 0; repeat < shape.repeats; ++repeat) {
        const LaneBits& bits = shape.BitsOf(repeat);
        for (uint32_t slot = 0; slot < shape.lanes / target.lanesPerSlot; ++slot) {
            if (!target.Writes(bits, slot)) continue;
            const uint64_t offset = target.Offset(repeat, slot);
            instruction.WriteBlock(base + static_cast<uint32_t>(offset), target.slotBytes);
            result(bits, repeat, slot, memory + offset);
        }
    }
    instruction.ComputeCost(shape.repeats, shape.lanes / RateOf<op, sizeof(T), sizeof(T)>());
    instruction.VectorConflicts(SourceConflictCycles(shape, from));
}

template <typename T, typename Step>
void RunBlockReduce(const CallSite& site, const std::optional<VectorShape>& shape, Step step,
                    const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, int32_t dstRepStride,
                    int32_t srcBlkStride, int32_t srcRepStride)
{
    if (!CheckReduceStrides(site, dstRepStride, srcBlkStride, srcRepStride) || !shape) return;
    constexpr uint32_t perBlock = kBlockBytes / sizeof(T);
    constexpr uint32_t results = kBlocksPerRepeat * sizeof(T);  // the bytes of a repeat's 8 results
    const Operand<T> from("srcLocal", src, srcBlkStride, srcRepStride);
    const LaneCursor<T> cursor(from);
    const ReduceTarget target = TargetOf(dst, sizeof(T), perBlock, results * dstRepStride, results);
    RunReduce<VectorOp::kBlockReduce>(
        site, *shape, from, target, [&](const LaneBits& bits, uint32_t repeat, uint32_t slot, uint8_t* to) {
            const Reduced<T> reduced = ReduceTree<perBlock>(cursor, bits, repeat, slot * perBlock, step);
            std::memcpy(to, &reduced.value, sizeof(T));
        });
}

template <typename T>
void RunPairReduceSum(const CallSite& site, const std::optional<VectorShape>& shape, const AscendC::LocalTensor<T>& dst,
                      const AscendC::LocalTensor<T>& src, int32_t dstRepStride, int32_t srcBlkStride,
                      int32_t srcRepStride)
{
    if (!CheckReduceStrides(site, dstRepStride, srcBlkStride, srcRepStride) || !shape) return;
    const Operand<T> from("srcLocal", src, srcBlkStride, srcRepStride);
    const LaneCursor<T> cursor(from);
    const ReduceTarget target = TargetOf(dst, sizeof(T), 2, kRepeatBytes / 2 * dstRepStride, kBlockBytes);
    RunReduce<VectorOp::kPairReduce>(
        site, *shape, from, target, [&](const LaneBits& bits, uint32_t repeat, uint32_t slot, uint8_t* to) {
            const Reduced<T> reduced = ReduceTree<2>(cursor, bits, repeat, slot * 2, SumStep());
            std::memcpy(to, &reduced.value, sizeof(T));
        });
}

template <typename T>
void RunWholeReduceSum(const CallSite& site, const std::optional<VectorShape>& shape,
                       const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, int32_t dstRepStride,
                       int32_t srcBlkStride, int32_t srcRepStride)
{
    if (!CheckReduceStrides(site, dstRepStride, srcBlkStride, srcRepStride) || !shape) return;
    const Operand<T> from("srcLocal", src, srcBlkStride, srcRepStride);
    const LaneCursor<T> cursor(from);
    const ReduceTarget target = TargetOf(dst, sizeof(T), kLanesOf<T>, sizeof(T) * dstRepStride, sizeof(T));
    RunReduce<VectorOp::kWholeReduce>(
        site, *shape, from, target, [&](const LaneBits& bits, uint32_t repeat, uint32_t, uint8_t* to) {
            const Reduced<T> reduced = ReduceTree<kLanesOf<T>>(cursor, bits, repeat, 0, SumStep());
            std::memcpy(to, &reduced.value, sizeof(T));
        });
}

// Values and indices are stored in the width of T, the index as raw bits of an unsigned integer, from 0 in each repeat;
// an index alone always has 32 bits.
template <typename T>
void StoreMaximum(const Reduced<T>& reduced, AscendC::ReduceOrder order, uint8_t* to)
{
    const auto index = static_cast<std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>>(reduced.lane);
    switch (order) {
        case AscendC::ReduceOrder::ORDER_ONLY_INDEX:
            std::memcpy(to, &reduced.lane, sizeof(uint32_t));
            return;
        case AscendC::ReduceOrder::ORDER_ONLY_VALUE:
            std::memcpy(to, &reduced.value, sizeof(T));
            return;
        case AscendC::ReduceOrder::ORDER_INDEX_VALUE:
            std::memcpy(to, &index, sizeof(T));
            std::memcpy(to + sizeof(T), &reduced.value, sizeof(T));
            return;
        default:
            std::memcpy(to, &reduced.value, sizeof(T));
            std::memcpy(to + sizeof(T), &index, sizeof(T));
    }
}

template <typename T>
uint32_t MaximumSlotBytes(AscendC::ReduceOrder order)
{
    switch (order) {
        case AscendC::ReduceOrder::ORDER_ONLY_VALUE:
            return sizeof(T);
        case AscendC::ReduceOrder::ORDER_ONLY_INDEX:
            return sizeof(uint32_t);
        default:
            return 2 * sizeof(T);
    }
}

template <typename T>
void RunWholeReduceMax(const CallSite& site, const std::optional<VectorShape>& shape,
                       const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, int32_t dstRepStride,
                       int32_t srcBlkStride, int32_t srcRepStride, AscendC::ReduceOrder order)
{
    if (!CheckReduceStrides(site, dstRepStride, srcBlkStride, srcRepStride) || !shape) return;
    const Operand<T> from("srcLocal", src, srcBlkStride, srcRepStride);
    const LaneCursor<T> cursor(from);
    const uint32_t slot = MaximumSlotBytes<T>(order);
    const ReduceTarget target = TargetOf(dst, slot, kLanesOf<T>, slot * dstRepStride, slot);
    RunReduce<VectorOp::kWholeReduce>(
        site, *shape, from, target, [&](const LaneBits& bits, uint32_t repeat, uint32_t, uint8_t* to) {
            StoreMaximum(ReduceTree<kLanesOf<T>>(cursor, bits, repeat, 0, MaxStep()), order, to);
        });
}

}  // namespace ascendc_host
