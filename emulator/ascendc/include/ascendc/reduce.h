// BlockReduce*, PairReduceSum and WholeReduce*.
#pragma once

#include <cstdint>

#include "reduce_engine.h"

namespace AscendC {

// The two forms of a reduction of blocks or pairs. A macro, because a template cannot make function names.
#define ASCENDC_HOST_BLOCK_REDUCE(Name, run)                                                                          \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const int32_t repeat,                   \
              const int32_t mask, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride, \
              Where where = Where::Here())                                                                            \
    {                                                                                                                 \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #Name ": the 910B supports half and float");            \
        const ascendc_host::CallSite site{#Name, where};                                                              \
        const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>,                   \
                                                                   static_cast<uint64_t>(mask), repeat);              \
        run;                                                                                                          \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const int32_t repeat,                   \
              const uint64_t mask[], const int32_t dstRepStride, const int32_t srcBlkStride,                          \
              const int32_t srcRepStride, Where where = Where::Here())                                                \
    {                                                                                                                 \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #Name ": the 910B supports half and float");            \
        const ascendc_host::CallSite site{#Name, where};                                                              \
        const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeat);    \
        run;                                                                                                          \
    }

ASCENDC_HOST_BLOCK_REDUCE(BlockReduceSum,
                          ascendc_host::RunBlockReduce(site, shape, ascendc_host::SumStep(), dstLocal, srcLocal,
                                                       dstRepStride, srcBlkStride, srcRepStride))
ASCENDC_HOST_BLOCK_REDUCE(BlockReduceMax,
                          ascendc_host::RunBlockReduce(site, shape, ascendc_host::MaxStep(), dstLocal, srcLocal,
                                                       dstRepStride, srcBlkStride, srcRepStride))
ASCENDC_HOST_BLOCK_REDUCE(BlockReduceMin,
                          ascendc_host::RunBlockReduce(site, shape, ascendc_host::MinStep(), dstLocal, srcLocal,
                                                       dstRepStride, srcBlkStride, srcRepStride))
ASCENDC_HOST_BLOCK_REDUCE(PairReduceSum, ascendc_host::RunPairReduceSum(site, shape, dstLocal, srcLocal, dstRepStride,
                                                                        srcBlkStride, srcRepStride))

#undef ASCENDC_HOST_BLOCK_REDUCE

template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const uint64_t mask[],
                    const int32_t repeatTimes, const int32_t dstRepStride, const int32_t srcBlkStride,
                    const int32_t srcRepStride, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, float>, "WholeReduceSum: the 910B supports half and float");
    const ascendc_host::CallSite site{"WholeReduceSum", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);
    ascendc_host::RunWholeReduceSum(site, shape, dstLocal, srcLocal, dstRepStride, srcBlkStride, srcRepStride);
}

template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const int32_t mask,
                    const int32_t repeatTimes, const int32_t dstRepStride, const int32_t srcBlkStride,
                    const int32_t srcRepStride, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, float>, "WholeReduceSum: the 910B supports half and float");
    const ascendc_host::CallSite site{"WholeReduceSum", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>,
                                                               static_cast<uint64_t>(mask), repeatTimes);
    ascendc_host::RunWholeReduceSum(site, shape, dstLocal, srcLocal, dstRepStride, srcBlkStride, srcRepStride);
}

// The two forms of a reduction to the extreme of each repeat. A macro, because a template cannot make function names.
#define ASCENDC_HOST_REDUCE_EXTREME(Whole, Step)                                                                 \
    template <typename T, bool isSetMask = true>                                                                 \
    void Whole(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const uint64_t mask[],            \
               const int32_t repeatTimes, const int32_t dstRepStride, const int32_t srcBlkStride,                \
               const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,                   \
               Where where = Where::Here())                                                                      \
    {                                                                                                            \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #Whole ": the 910B supports half and float");      \
        const ascendc_host::CallSite site{#Whole, where};                                                        \
        const auto shape =                                                                                       \
            ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);         \
        ascendc_host::RunWholeReduceExtreme(site, shape, Step(), dstLocal, srcLocal, dstRepStride, srcBlkStride, \
                                            srcRepStride, order);                                                \
    }                                                                                                            \
    template <typename T, bool isSetMask = true>                                                                 \
    void Whole(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const int32_t mask,               \
               const int32_t repeatTimes, const int32_t dstRepStride, const int32_t srcBlkStride,                \
               const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,                   \
               Where where = Where::Here())                                                                      \
    {                                                                                                            \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #Whole ": the 910B supports half and float");      \
        const ascendc_host::CallSite site{#Whole, where};                                                        \
        const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>,              \
                                                                   static_cast<uint64_t>(mask), repeatTimes);    \
        ascendc_host::RunWholeReduceExtreme(site, shape, Step(), dstLocal, srcLocal, dstRepStride, srcBlkStride, \
                                            srcRepStride, order);                                                \
    }

ASCENDC_HOST_REDUCE_EXTREME(WholeReduceMax, ascendc_host::MaxStep)
ASCENDC_HOST_REDUCE_EXTREME(WholeReduceMin, ascendc_host::MinStep)

#undef ASCENDC_HOST_REDUCE_EXTREME

}  // namespace AscendC
