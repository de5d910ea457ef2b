// BlockReduceSum, BlockReduceMax, PairReduceSum, WholeReduceSum and WholeReduceMax.
#pragma once

#include <cstdint>

#include "reduce_engine.h"

namespace AscendC {

// A reduction of blocks or pairs. A macro, because a template cannot make function names.
#define ASCENDC_HOST_BLOCK_REDUCE(Name, run)                                                                       \
    template <typename T, bool isSetMask = true>                                                                   \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const int32_t repeat,                \
              const ascendc_host::MaskArgument& mask, const int32_t dstRepStride, const int32_t srcBlkStride,      \
              const int32_t srcRepStride, Where where = Where::Here())                                             \
    {                                                                                                              \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #Name ": the 910B supports half and float");         \
        const ascendc_host::CallSite site{#Name, where};                                                           \
        const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeat); \
        run;                                                                                                       \
    }

ASCENDC_HOST_BLOCK_REDUCE(BlockReduceSum,
                          ascendc_host::RunBlockReduce(site, shape, ascendc_host::SumStep(), dstLocal, srcLocal,
                                                       dstRepStride, srcBlkStride, srcRepStride))
ASCENDC_HOST_BLOCK_REDUCE(BlockReduceMax,
                          ascendc_host::RunBlockReduce(site, shape, ascendc_host::MaxStep(), dstLocal, srcLocal,
                                                       dstRepStride, srcBlkStride, srcRepStride))
ASCENDC_HOST_BLOCK_REDUCE(PairReduceSum, ascendc_host::RunPairReduceSum(site, shape, dstLocal, srcLocal, dstRepStride,
                                                                        srcBlkStride, srcRepStride))

#undef ASCENDC_HOST_BLOCK_REDUCE

template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                    const ascendc_host::MaskArgument& mask, const int32_t repeatTimes, const int32_t dstRepStride,
                    const int32_t srcBlkStride, const int32_t srcRepStride, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, float>, "WholeReduceSum: the 910B supports half and float");
    const ascendc_host::CallSite site{"WholeReduceSum", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);
    ascendc_host::RunWholeReduceSum(site, shape, dstLocal, srcLocal, dstRepStride, srcBlkStride, srcRepStride);
}

template <typename T, bool isSetMask = true>
void WholeReduceMax(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                    const ascendc_host::MaskArgument& mask, const int32_t repeatTimes, const int32_t dstRepStride,
                    const int32_t srcBlkStride, const int32_t srcRepStride,
                    ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, float>, "WholeReduceMax: the 910B supports half and float");
    const ascendc_host::CallSite site{"WholeReduceMax", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);
    ascendc_host::RunWholeReduceMax(site, shape, dstLocal, srcLocal, dstRepStride, srcBlkStride, srcRepStride, order);
}

}  // namespace AscendC
