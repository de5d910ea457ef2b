// BlockReduce*, PairReduceSum, WholeReduce*, RepeatReduceSum and the composed ReduceSum, ReduceMax, ReduceMin.
#pragma once

#include <cstdint>
#include <cstring>

#include "reduce_composed.h"
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

template <typename T, bool isSetMask = true>
void RepeatReduceSum(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const int32_t repeat,
                     const int32_t elemsInOneRepeat, const int32_t, const int32_t srcBlkStride,
                     const int32_t dstRepStride, const int32_t srcRepStride, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, float>, "RepeatReduceSum: the 910B supports half and float");
    const ascendc_host::CallSite site{"RepeatReduceSum", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>,
                                                               static_cast<uint64_t>(elemsInOneRepeat), repeat);
    ascendc_host::RunWholeReduceSum(site, shape, dstLocal, srcLocal, dstRepStride, srcBlkStride, srcRepStride);
}

// The two forms of a reduction to the extreme of each repeat, and the three forms of one over all repeats. A macro,
// because a template cannot make function names.
#define ASCENDC_HOST_REDUCE_EXTREME(Whole, All, Step)                                                                \
    template <typename T, bool isSetMask = true>                                                                     \
    void Whole(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const uint64_t mask[],                \
               const int32_t repeatTimes, const int32_t dstRepStride, const int32_t srcBlkStride,                    \
               const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,                       \
               Where where = Where::Here())                                                                          \
    {                                                                                                                \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #Whole ": the 910B supports half and float");          \
        const ascendc_host::CallSite site{#Whole, where};                                                            \
        const auto shape =                                                                                           \
            ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);             \
        ascendc_host::RunWholeReduceExtreme(site, shape, Step(), dstLocal, srcLocal, dstRepStride, srcBlkStride,     \
                                            srcRepStride, order);                                                    \
    }                                                                                                                \
    template <typename T, bool isSetMask = true>                                                                     \
    void Whole(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const int32_t mask,                   \
               const int32_t repeatTimes, const int32_t dstRepStride, const int32_t srcBlkStride,                    \
               const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,                       \
               Where where = Where::Here())                                                                          \
    {                                                                                                                \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #Whole ": the 910B supports half and float");          \
        const ascendc_host::CallSite site{#Whole, where};                                                            \
        const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>,                  \
                                                                   static_cast<uint64_t>(mask), repeatTimes);        \
        ascendc_host::RunWholeReduceExtreme(site, shape, Step(), dstLocal, srcLocal, dstRepStride, srcBlkStride,     \
                                            srcRepStride, order);                                                    \
    }                                                                                                                \
    template <typename T>                                                                                            \
    void All(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<T>& workLocal,        \
             const int32_t mask, const int32_t repeatTimes, const int32_t srcRepStride, bool calIndex = 0,           \
             Where where = Where::Here())                                                                            \
    {                                                                                                                \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #All ": the 910B supports half and float");            \
        const ascendc_host::CallSite site{#All, where};                                                              \
        const auto bits = ascendc_host::RequestedMask(site, ascendc_host::kLanesOf<T>, static_cast<uint64_t>(mask)); \
        ascendc_host::RunReduceExtreme(site, Step(), dstLocal, srcLocal, workLocal,                                  \
                                       ascendc_host::LongShape<T>(site, bits, repeatTimes), srcRepStride, calIndex); \
    }                                                                                                                \
    template <typename T>                                                                                            \
    void All(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<T>& workLocal,        \
             const uint64_t mask[], const int32_t repeatTimes, const int32_t srcRepStride, bool calIndex = 0,        \
             Where where = Where::Here())                                                                            \
    {                                                                                                                \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #All ": the 910B supports half and float");            \
        const ascendc_host::CallSite site{#All, where};                                                              \
        const auto bits = ascendc_host::RequestedMask(site, ascendc_host::kLanesOf<T>, mask);                        \
        ascendc_host::RunReduceExtreme(site, Step(), dstLocal, srcLocal, workLocal,                                  \
                                       ascendc_host::LongShape<T>(site, bits, repeatTimes), srcRepStride, calIndex); \
    }                                                                                                                \
    template <typename T>                                                                                            \
    void All(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<T>& workLocal,        \
             const int32_t count, bool calIndex = 0, Where where = Where::Here())                                    \
    {                                                                                                                \
        static_assert(ascendc_host::kIsOneOf<T, half, float>, #All ": the 910B supports half and float");            \
        const ascendc_host::CallSite site{#All, where};                                                              \
        const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T>, count);                      \
        ascendc_host::RunReduceExtreme(site, Step(), dstLocal, srcLocal, workLocal, shape, DEFAULT_REPEAT_STRIDE,    \
                                       calIndex);                                                                    \
    }

ASCENDC_HOST_REDUCE_EXTREME(WholeReduceMax, ReduceMax, ascendc_host::MaxStep)
ASCENDC_HOST_REDUCE_EXTREME(WholeReduceMin, ReduceMin, ascendc_host::MinStep)

#undef ASCENDC_HOST_REDUCE_EXTREME

template <typename T>
void ReduceSum(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<T>& workLocal,
               const int32_t mask, const int32_t repeatTimes, const int32_t srcRepStride, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, float>, "ReduceSum: the 910B supports half and float");
    const ascendc_host::CallSite site{"ReduceSum", where};
    const auto bits = ascendc_host::RequestedMask(site, ascendc_host::kLanesOf<T>, static_cast<uint64_t>(mask));
    ascendc_host::RunReduceSumRepeats(site, dstLocal, srcLocal, workLocal,
                                      ascendc_host::LongShape<T>(site, bits, repeatTimes), srcRepStride);
}

template <typename T>
void ReduceSum(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<T>& workLocal,
               const uint64_t mask[], const int32_t repeatTimes, const int32_t srcRepStride,
               Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, float>, "ReduceSum: the 910B supports half and float");
    const ascendc_host::CallSite site{"ReduceSum", where};
    const auto bits = ascendc_host::RequestedMask(site, ascendc_host::kLanesOf<T>, mask);
    ascendc_host::RunReduceSumRepeats(site, dstLocal, srcLocal, workLocal,
                                      ascendc_host::LongShape<T>(site, bits, repeatTimes), srcRepStride);
}

// workLocal is not used by this form.
template <typename T, bool isSetMask = true>
void ReduceSum(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<T>&,
               const int32_t count, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, float>, "ReduceSum: the 910B supports half and float");
    const ascendc_host::CallSite site{"ReduceSum", where};
    const auto shape = ascendc_host::CountOrRegisterShape<isSetMask>(site, ascendc_host::kLanesOf<T>, count);
    ascendc_host::RunReduceSumCount(site, dstLocal, srcLocal, shape);
}

// The sum that the last ReduceSum with a count left in the accumulator; needs a V_S flag since then.
template <typename T>
T GetAccVal(Where where = Where::Here())
{
    const uint64_t bits = ascendc_host::Core::Current().ReadRegister(ascendc_host::Register::kAccumulator, where);
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

}  // namespace AscendC
