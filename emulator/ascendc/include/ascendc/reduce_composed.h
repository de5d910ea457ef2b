// ReduceSum, ReduceMax and ReduceMin: calls that the toolkit composes of vector reductions and a round trip through the
// scalar unit. In hot loops the reductions of blocks and repeats are the better choice.
#pragma once

#include <cstdint>
#include <vector>

#include "reduce_engine.h"

namespace ascendc_host {

// As a shape with mask and repeats, but with more than 255 repeats; the toolkit splits such calls.
template <typename T>
std::optional<VectorShape> LongShape(const CallSite& site, const MaskRegister& mask, int32_t repeats)
{
    CurrentMask() = mask;
    if (repeats > AscendC::MAX_REPEAT_TIMES) {
        VectorShape shape;
        shape.lanes = kLanesOf<T>;
        shape.repeats = static_cast<uint32_t>(repeats);
        const LaneBits all = FirstLanes(shape.lanes);
        shape.bits = {mask.low & all.low, mask.high & all.high};
        shape.lastBits = shape.bits;
        return shape;
    }
    return RegisterShape(site, kLanesOf<T>, repeats);
}

// The scalar unit writes the result behind the vector unit, and both V and MTE3 may use it afterwards.
template <typename T>
void StoreByScalar(const CallSite& site, const AscendC::LocalTensor<T>& dst, const std::vector<T>& values)
{
    for (size_t i = 0; i < values.size(); ++i) ScalarWrite<T>(dst.View(), i, values[i], site.call, site.where);
    SetAndWait(Pipe::kS, Pipe::kV);
    SetAndWait(Pipe::kS, Pipe::kMte3);
}

// Each repeat as a tree, the repeats one after another into the accumulator.
template <typename T>
void RunReduceSumCount(const CallSite& site, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                       const std::optional<VectorShape>& shape)
{
    if (!shape) return;
    const Operand<T> from("srcLocal", src, 1, kBlocksPerRepeat);
    T sum = 0;
    {
        Instruction instruction(Pipe::kV, site.call, site.where);
        CheckOperand<Access::kRead>(instruction, from, *shape);
        const LaneCursor<T> cursor(from);
        for (uint32_t repeat = 0; repeat < shape->repeats; ++repeat) {
            const T part = ReduceTree<kLanesOf<T>>(cursor, shape->BitsOf(repeat), repeat, 0, SumStep()).value;
            sum = repeat == 0 ? part : static_cast<T>(static_cast<float>(sum) + static_cast<float>(part));
        }
        uint64_t bits = 0;
        std::memcpy(&bits, &sum, sizeof(T));
        Core::Current().WriteRegister(Register::kAccumulator, bits);
        instruction.ComputeCost(shape->repeats, kLanesOf<T> / RateOf<VectorOp::kWholeReduce, sizeof(T), sizeof(T)>());
    }
    SetAndWait(Pipe::kV, Pipe::kS);
    StoreByScalar<T>(site, dst, {sum});
}

// One further vector instruction over the first bytes of workLocal, for the cost and the order of the later steps.
template <typename T>
void ReduceStepInWork(const CallSite& site, const AscendC::LocalTensor<T>& work, uint64_t bytes)
{
    Core::Current().Barrier(Pipe::kV, kInsideLibrary);
    Instruction instruction(Pipe::kV, site.call, site.where);
    instruction.Read(work.View(), 0, bytes);
    const double repeats = static_cast<double>((bytes + kRepeatBytes - 1) / kRepeatBytes);
    instruction.ComputeCost(repeats, kLanesOf<T> / RateOf<VectorOp::kWholeReduce, sizeof(T), sizeof(T)>());
}

// The first step: one result of `resultsPerRepeat` elements for each repeat into workLocal.
template <typename T, typename Step>
std::vector<Reduced<T>> ReduceRepeats(const CallSite& site, const AscendC::LocalTensor<T>& work,
                                      const AscendC::LocalTensor<T>& src, const VectorShape& shape, Step step,
                                      int32_t srcRepStride, uint32_t resultsPerRepeat)
{
    const Operand<T> from("srcLocal", src, 1, static_cast<uint32_t>(srcRepStride));
    const Operand<T> to("workLocal", work, 1, 1);
    const uint64_t bytes = static_cast<uint64_t>(shape.repeats) * resultsPerRepeat * sizeof(T);
    Instruction instruction(Pipe::kV, site.call, site.where);
    CheckOperand<Access::kRead>(instruction, from, shape);
    instruction.CheckAligned(to.view, kBlockBytes, to.name);
    uint8_t* results = instruction.Write(to.view, 0, bytes);
    RequireDisjoint(site, to, {0, bytes}, from, SpanOf(from, shape));
    const LaneCursor<T> cursor(from);
    std::vector<Reduced<T>> reduced;
    for (uint32_t repeat = 0; repeat < shape.repeats; ++repeat) {
        Reduced<T> one = ReduceTree<kLanesOf<T>>(cursor, shape.BitsOf(repeat), repeat, 0, step);
        std::memcpy(results + static_cast<size_t>(repeat) * resultsPerRepeat * sizeof(T), &one.value, sizeof(T));
        one.lane += repeat * static_cast<uint32_t>(srcRepStride) * (kBlockBytes / sizeof(T));
        reduced.push_back(one);
    }
    instruction.ComputeCost(shape.repeats, kLanesOf<T> / RateOf<VectorOp::kWholeReduce, sizeof(T), sizeof(T)>());
    return reduced;
}

// Neighbours in pairs; an odd one out goes on alone.
template <typename T>
Reduced<T> SumTree(std::vector<Reduced<T>> level)
{
    while (level.size() > 1) {
        std::vector<Reduced<T>> next;
        for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(SumStep()(level[i], level[i + 1]));
        if (level.size() % 2 != 0) next.push_back(level.back());
        level = std::move(next);
    }
    return level[0];
}

template <typename T>
void RunReduceSumRepeats(const CallSite& site, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                         const AscendC::LocalTensor<T>& work, const std::optional<VectorShape>& shape,
                         int32_t srcRepStride)
{
    if (!CheckReduceStrides(site, 0, 0, srcRepStride) || !shape) return;
    std::vector<Reduced<T>> parts = ReduceRepeats(site, work, src, *shape, SumStep(), srcRepStride, 1);
    while (parts.size() > 1) {
        ReduceStepInWork(site, work, parts.size() * sizeof(T));
        std::vector<Reduced<T>> sums;
        for (size_t first = 0; first < parts.size(); first += kLanesOf<T>) {
            const size_t last = std::min<size_t>(first + kLanesOf<T>, parts.size());
            sums.push_back(SumTree(std::vector<Reduced<T>>(parts.begin() + first, parts.begin() + last)));
        }
        parts = std::move(sums);
    }
    SetAndWait(Pipe::kV, Pipe::kS);
    StoreByScalar<T>(site, dst, {parts[0].value});
}

// The result and, on demand, its index from the start of src: raw bits in the width of T.
template <typename T, typename Step>
void RunReduceExtreme(const CallSite& site, Step step, const AscendC::LocalTensor<T>& dst,
                      const AscendC::LocalTensor<T>& src, const AscendC::LocalTensor<T>& work,
                      const std::optional<VectorShape>& shape, int32_t srcRepStride, bool calIndex)
{
    if (!CheckReduceStrides(site, 0, 0, srcRepStride) || !shape) return;
    const std::vector<Reduced<T>> parts = ReduceRepeats(site, work, src, *shape, step, srcRepStride, 2);
    for (size_t left = parts.size(); left > 1; left = (left * 2 + kLanesOf<T> - 1) / kLanesOf<T>) {
        ReduceStepInWork(site, work, left * 2 * sizeof(T));
    }
    Reduced<T> best = parts[0];
    for (const Reduced<T>& part : parts) best = step(best, part);
    std::vector<T> result = {best.value};
    if (calIndex) {
        T index;
        std::memcpy(&index, &best.lane, sizeof(T));
        result.push_back(index);
    }
    SetAndWait(Pipe::kV, Pipe::kS);
    StoreByScalar<T>(site, dst, result);
}

}  // namespace ascendc_host
