// CreateVecIndex: first, first + 1, first + 2, ...
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

// The scalar unit writes the first block; afterwards vector instructions may go on.
template <typename T>
void WriteFirstBlock(const CallSite& site, const AscendC::LocalTensor<T>& dst, T first)
{
    for (uint32_t lane = 0; lane < kBlockBytes / sizeof(T); ++lane) {
        const float value = static_cast<float>(first) + static_cast<float>(lane);
        ScalarWrite<T>(dst.View(), lane, static_cast<T>(value), site.call, site.where);
    }
    SetAndWait(Pipe::kS, Pipe::kV);
}

// dst[to...] = dst[to - distance...] + distance, behind the step before; a step from element 0 reads what the scalar
// unit wrote.
template <typename T>
void AddStep(const CallSite& site, const AscendC::LocalTensor<T>& dst, uint64_t to, uint32_t distance, uint64_t end)
{
    if (to != distance || to == kLanesOf<T>) Core::Current().Barrier(Pipe::kV, kInsideLibrary);
    const AscendC::LocalTensor<T> target = dst[Index(to, site.where)];
    const AscendC::LocalTensor<T> source = dst[Index(to - distance, site.where)];
    const VectorShape shape = CountShape(kLanesOf<T>, std::min<uint64_t>(distance, end - to));
    RunUnary<VectorOp::kArithmetic>(site, std::optional(shape), WithScalar<AddLane, T>{static_cast<T>(distance)},
                                    target, source, AscendC::UnaryRepeatParams());
}

template <typename T>
void RunVecIndex(const CallSite& site, const AscendC::LocalTensor<T>& dst, T first, uint64_t count)
{
    constexpr uint32_t perBlock = kBlockBytes / sizeof(T);
    constexpr uint32_t perRepeat = kLanesOf<T>;
    CurrentMask() = MaskRegister{};
    if (count == 0) return;
    WriteFirstBlock(site, dst, first);
    const uint64_t blocks = std::min<uint64_t>(count, perRepeat);
    for (uint64_t done = perBlock; done < blocks; done += perBlock) AddStep(site, dst, done, perBlock, blocks);
    for (uint64_t done = perRepeat; done < count; done += perRepeat) AddStep(site, dst, done, perRepeat, count);
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T>
void CreateVecIndex(LocalTensor<T> dstLocal, const T& firstValue, uint32_t calCount, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, int16_t, half, int32_t, float>,
                  "CreateVecIndex: the 910B supports int16_t, half, int32_t and float");
    ascendc_host::RunVecIndex(ascendc_host::CallSite{"CreateVecIndex", where}, dstLocal, firstValue, calCount);
}

}  // namespace AscendC
