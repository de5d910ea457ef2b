// CreateVecIndex and ArithProgression: first, first + step, first + 2 * step, ...
//
// As in the public headers the first block is written by the scalar unit and the rest by chains of Adds with barriers
// between them. So a tensor that vector instructions still use needs a V_S flag before the call, and what reads the
// result a barrier after it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "library_calls.h"
#include "vector_scalar.h"

namespace ascendc_host {

// The scalar unit writes the lanes of `bits` in the first repeat; afterwards vector instructions may go on.
template <typename T>
void WriteFirstLanes(const CallSite& site, const AscendC::LocalTensor<T>& dst, T first, T step, const LaneBits& bits,
                     uint32_t blockStride)
{
    constexpr uint32_t perBlock = kBlockBytes / sizeof(T);
    for (uint32_t lane = 0; lane < kLanesOf<T>; ++lane) {
        if (bits.Group(lane, 1) == 0) continue;
        const float value = static_cast<float>(first) + static_cast<float>(step) * static_cast<float>(lane);
        const uint32_t element = lane / perBlock * blockStride * perBlock + lane % perBlock;
        ScalarWrite<T>(dst.View(), element, static_cast<T>(value), site.call, site.where);
    }
    SetAndWait(Pipe::kS, Pipe::kV);
}

// dst[to...] = dst[from...] + distance, behind the step before; a step from element 0 reads what the scalar unit wrote.
template <typename T>
void AddProgression(const CallSite& site, const AscendC::LocalTensor<T>& dst, uint64_t to, uint64_t from,
                    uint64_t count, T distance)
{
    if (from != 0 || to == kLanesOf<T>) Core::Current().Barrier(Pipe::kV, kInsideLibrary);
    const AscendC::LocalTensor<T> target = dst[Index(to, site.where)];
    const AscendC::LocalTensor<T> source = dst[Index(from, site.where)];
    RunUnary<VectorOp::kArithmetic>(site, std::optional(CountShape(kLanesOf<T>, count)),
                                    WithScalar<AddLane, T>{distance}, target, source, AscendC::UnaryRepeatParams());
}

template <typename T>
T Distance(T step, uint32_t elements)
{
    return static_cast<T>(static_cast<float>(step) * static_cast<float>(elements));
}

template <typename T>
void RunProgression(const CallSite& site, const AscendC::LocalTensor<T>& dst, T first, T step, uint64_t count)
{
    constexpr uint32_t perBlock = kBlockBytes / sizeof(T);
    constexpr uint32_t perRepeat = kLanesOf<T>;
    CurrentMask() = MaskRegister{};
    if (count == 0) return;
    WriteFirstLanes(site, dst, first, step, FirstLanes(perBlock), 1);
    for (uint64_t done = perBlock; done < std::min<uint64_t>(count, perRepeat); done += perBlock) {
        AddProgression(site, dst, done, done - perBlock, std::min<uint64_t>(perBlock, count - done),
                       Distance(step, perBlock));
    }
    for (uint64_t done = perRepeat; done < count; done += perRepeat) {
        AddProgression(site, dst, done, done - perRepeat, std::min<uint64_t>(perRepeat, count - done),
                       Distance(step, perRepeat));
    }
}

template <typename T>
void RunIndexRepeats(const CallSite& site, const AscendC::LocalTensor<T>& dst, T first, const MaskRegister& mask,
                     uint8_t repeats, uint32_t blockStride, uint32_t repeatStride)
{
    constexpr uint32_t perBlock = kBlockBytes / sizeof(T);
    CurrentMask() = mask;
    const auto shape = RegisterShape(site, kLanesOf<T>, repeats);
    if (!shape) return;
    VectorShape one = *shape;
    one.repeats = 1;
    one.elements = 0;
    WriteFirstLanes(site, dst, first, static_cast<T>(1), one.bits, blockStride);
    for (uint32_t repeat = 1; repeat < shape->repeats; ++repeat) {
        if (repeat > 1) Core::Current().Barrier(Pipe::kV, kInsideLibrary);
        const uint64_t to = static_cast<uint64_t>(repeat) * repeatStride * perBlock;
        const AscendC::UnaryRepeatParams strides(blockStride, blockStride, 8, 8);
        RunUnary<VectorOp::kArithmetic>(
            site, std::optional(one), WithScalar<AddLane, T>{static_cast<T>(kLanesOf<T>)}, dst[Index(to, site.where)],
            dst[Index(to - static_cast<uint64_t>(repeatStride) * perBlock, site.where)], strides);
    }
}

template <typename T>
constexpr bool kIsIndexType = kIsOneOf<T, int16_t, half, int32_t, float>;

}  // namespace ascendc_host

namespace AscendC {

template <typename T>
void CreateVecIndex(LocalTensor<T>& dstLocal, const T& firstValue, uint64_t mask, uint8_t repeatTimes,
                    uint16_t dstBlkStride, uint8_t dstRepStride, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsIndexType<T>, "CreateVecIndex: the 910B supports int16_t, half, int32_t and float");
    const ascendc_host::CallSite site{"CreateVecIndex", where};
    const auto bits = ascendc_host::RequestedMask(site, ascendc_host::kLanesOf<T>, mask);
    ascendc_host::RunIndexRepeats(site, dstLocal, firstValue, bits, repeatTimes, dstBlkStride, dstRepStride);
}

template <typename T>
void CreateVecIndex(LocalTensor<T>& dstLocal, const T& firstValue, uint64_t mask[], uint8_t repeatTimes,
                    uint16_t dstBlkStride, uint8_t dstRepStride, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsIndexType<T>, "CreateVecIndex: the 910B supports int16_t, half, int32_t and float");
    const ascendc_host::CallSite site{"CreateVecIndex", where};
    const auto bits = ascendc_host::RequestedMask(site, ascendc_host::kLanesOf<T>, static_cast<const uint64_t*>(mask));
    ascendc_host::RunIndexRepeats(site, dstLocal, firstValue, bits, repeatTimes, dstBlkStride, dstRepStride);
}

template <typename T>
void CreateVecIndex(LocalTensor<T> dstLocal, const T& firstValue, uint32_t calCount, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsIndexType<T>, "CreateVecIndex: the 910B supports int16_t, half, int32_t and float");
    ascendc_host::RunProgression(ascendc_host::CallSite{"CreateVecIndex", where}, dstLocal, firstValue,
                                 static_cast<T>(1), calCount);
}

template <typename T>
void ArithProgression(const LocalTensor<T>& dstLocal, const T firstValue, const T diffValue, const int32_t count,
                      Where where = Where::Here())
{
    static_assert(ascendc_host::kIsIndexType<T>, "ArithProgression: the 910B supports int16_t, half, int32_t, float");
    const ascendc_host::CallSite site{"ArithProgression", where};
    if (count < 0) {
        site.Report(ascendc_host::Check::kParameter, "count is " + std::to_string(count), "give 0 or more elements");
        return;
    }
    ascendc_host::RunProgression(site, dstLocal, firstValue, diffValue, static_cast<uint64_t>(count));
}

}  // namespace AscendC
