// dst += src0 * src1 (MulAddDst) and dst += src * scalar (Axpy).
//
// The product and the sum are rounded one after the other, in float; the device may fuse them into one rounding, so
// the last bit may differ there.
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine/defects.h"
#include "repeat_params.h"
#include "vector_lanes.h"

namespace ascendc_host {

struct MulAddLane {
    bool narrow = false;  // a planted defect: products of halves are rounded to half

    template <typename D, typename S>
    D operator()(D accumulator, S a, S b) const
    {
        const float product = static_cast<float>(a) * static_cast<float>(b);
        if constexpr (std::is_same_v<D, float>) {
            if (std::is_same_v<S, half> && narrow) return accumulator + static_cast<float>(static_cast<half>(product));
            return accumulator + product;
        } else {
            return static_cast<D>(static_cast<float>(accumulator) + static_cast<float>(static_cast<D>(product)));
        }
    }
};

template <typename S>
struct AxpyLane {
    S scalar;
    template <typename D>
    D operator()(D accumulator, S a) const
    {
        return MulAddLane()(accumulator, a, scalar);
    }
};

template <typename D, typename S>
constexpr bool kMulAddTypes =
    (std::is_same_v<D, S> && kIsOneOf<D, half, float>) || (std::is_same_v<D, float> && std::is_same_v<S, half>);

// A repeat holds 8 blocks of the destination and of a source of the same type, 4 of a half source of a float one.
template <typename D, typename S>
constexpr uint8_t kSourceRepeatStride = kBlocksPerRepeat * sizeof(S) / sizeof(D);

template <typename D, typename S>
void RunMulAddDst(const CallSite& site, const std::optional<VectorShape>& shape, const AscendC::LocalTensor<D>& dst,
                  const AscendC::LocalTensor<S>& src0, const AscendC::LocalTensor<S>& src1,
                  const AscendC::BinaryRepeatParams& strides)
{
    if (!shape) return;
    RunAccumulate<VectorOp::kMulAddDst>(site, *shape, MulAddLane{Planted(Defect::kMultiplyAddInHalf)},
                                        Operand<D>("dstLocal", dst, strides.dstBlkStride, strides.dstRepStride),
                                        Operand<S>("src0Local", src0, strides.src0BlkStride, strides.src0RepStride),
                                        Operand<S>("src1Local", src1, strides.src1BlkStride, strides.src1RepStride));
}

template <typename D, typename S>
void RunAxpy(const CallSite& site, const std::optional<VectorShape>& shape, const AscendC::LocalTensor<D>& dst,
             const AscendC::LocalTensor<S>& src, const S& scalar, const AscendC::UnaryRepeatParams& strides)
{
    if (!shape) return;
    RunAccumulate<VectorOp::kAxpy>(site, *shape, AxpyLane<S>{scalar},
                                   Operand<D>("dstLocal", dst, strides.dstBlkStride, strides.dstRepStride),
                                   Operand<S>("srcLocal", src, strides.srcBlkStride, strides.srcRepStride));
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T, typename U, bool isSetMask = true>
void MulAddDst(const LocalTensor<T>& dstLocal, const LocalTensor<U>& src0Local, const LocalTensor<U>& src1Local,
               const ascendc_host::MaskArgument& mask, const uint8_t repeatTimes,
               const BinaryRepeatParams& repeatParams, Where where = Where::Here())
{
    static_assert(ascendc_host::kMulAddTypes<T, U>, "MulAddDst: the 910B supports half, float, and half into float");
    const ascendc_host::CallSite site{"MulAddDst", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T, U>, mask, repeatTimes);
    ascendc_host::RunMulAddDst(site, shape, dstLocal, src0Local, src1Local, repeatParams);
}

template <typename T, typename U>
void MulAddDst(const LocalTensor<T>& dstLocal, const LocalTensor<U>& src0Local, const LocalTensor<U>& src1Local,
               const int32_t& calCount, Where where = Where::Here())
{
    static_assert(ascendc_host::kMulAddTypes<T, U>, "MulAddDst: the 910B supports half, float, and half into float");
    const ascendc_host::CallSite site{"MulAddDst", where};
    const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T, U>, calCount);
    constexpr uint8_t stride = ascendc_host::kSourceRepeatStride<T, U>;
    ascendc_host::RunMulAddDst(site, shape, dstLocal, src0Local, src1Local,
                               BinaryRepeatParams(1, 1, 1, DEFAULT_REPEAT_STRIDE, stride, stride));
}

template <typename T, typename U, bool isSetMask = true>
void Axpy(const LocalTensor<T>& dstLocal, const LocalTensor<U>& srcLocal, const U& scalarValue,
          const ascendc_host::MaskArgument& mask, const uint8_t repeatTimes, const UnaryRepeatParams& repeatParams,
          Where where = Where::Here())
{
    static_assert(ascendc_host::kMulAddTypes<T, U>, "Axpy: the 910B supports half, float, and half into float");
    const ascendc_host::CallSite site{"Axpy", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T, U>, mask, repeatTimes);
    ascendc_host::RunAxpy(site, shape, dstLocal, srcLocal, scalarValue, repeatParams);
}

template <typename T, typename U>
void Axpy(const LocalTensor<T>& dstLocal, const LocalTensor<U>& srcLocal, const U& scalarValue, const int32_t& calCount,
          Where where = Where::Here())
{
    static_assert(ascendc_host::kMulAddTypes<T, U>, "Axpy: the 910B supports half, float, and half into float");
    const ascendc_host::CallSite site{"Axpy", where};
    const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T, U>, calCount);
    ascendc_host::RunAxpy(site, shape, dstLocal, srcLocal, scalarValue,
                          UnaryRepeatParams(1, 1, DEFAULT_REPEAT_STRIDE, ascendc_host::kSourceRepeatStride<T, U>));
}

}  // namespace AscendC
