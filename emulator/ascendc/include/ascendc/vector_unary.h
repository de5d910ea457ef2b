// dst = op src: Exp Ln Abs.
//
// Exp and Ln are the host's float functions, rounded to the type. How accurate the device's
// instructions are is unknown, so nothing may be tuned to these values.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine/defects.h"
#include "repeat_params.h"
#include "vector_lanes.h"

namespace ascendc_host {

// Without the lower bits where the defect is planted.
inline float TenBits(Defect defect, float value)
{
    if (!Planted(defect)) return value;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    bits &= ~0x1fffu;
    std::memcpy(&value, &bits, sizeof(bits));
    return value;
}

// The exponential, or 1 where the defect of so low a number is planted.
inline float ExpOf(float value)
{
    const Defect ofLow = std::isinf(value) ? Defect::kExpOfInfinityIsOne : Defect::kExpOfLowestIsOne;
    if (value < -1e38f && Planted(ofLow)) return 1.0f;
    return TenBits(Defect::kExpInHalf, std::exp(value));
}

struct ExpLane {
    template <typename T>
    T operator()(T a) const
    {
        return static_cast<T>(ExpOf(static_cast<float>(a)));
    }
};

struct LnLane {
    template <typename T>
    T operator()(T a) const
    {
        return static_cast<T>(TenBits(Defect::kLnInHalf, std::log(static_cast<float>(a))));
    }
};

struct AbsLane {
    template <typename T>
    T operator()(T a) const
    {
        return static_cast<T>(std::fabs(static_cast<float>(a)));
    }
};

template <VectorOp op, typename F, typename T>
void RunUnary(const CallSite& site, const std::optional<VectorShape>& shape, F f, const AscendC::LocalTensor<T>& dst,
              const AscendC::LocalTensor<T>& src, const AscendC::UnaryRepeatParams& strides)
{
    if (!shape) return;
    RunElementwise<op>(site, *shape, f, Operand<T>("dstLocal", dst, strides.dstBlkStride, strides.dstRepStride),
                       Operand<T>("srcLocal", src, strides.srcBlkStride, strides.srcRepStride));
}

}  // namespace ascendc_host

namespace AscendC {

// The two forms of a unary instruction. A macro, because a template cannot make function names.
#define ASCENDC_HOST_UNARY(Name, op, Lane, message, ...)                                                              \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const ascendc_host::MaskArgument& mask, \
              const uint8_t repeatTimes, const UnaryRepeatParams& repeatParams, Where where = Where::Here())          \
    {                                                                                                                 \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                               \
        const ascendc_host::CallSite site{#Name, where};                                                              \
        const auto shape =                                                                                            \
            ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);              \
        ascendc_host::RunUnary<op>(site, shape, Lane(), dstLocal, srcLocal, repeatParams);                            \
    }                                                                                                                 \
    template <typename T>                                                                                             \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const int32_t& calCount,                \
              Where where = Where::Here())                                                                            \
    {                                                                                                                 \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                               \
        const ascendc_host::CallSite site{#Name, where};                                                              \
        const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T>, calCount);                    \
        ascendc_host::RunUnary<op>(site, shape, Lane(), dstLocal, srcLocal, UnaryRepeatParams());                     \
    }

ASCENDC_HOST_UNARY(Exp, ascendc_host::VectorOp::kDivExpLn, ascendc_host::ExpLane,
                   "Exp: the 910B supports half and float", half, float)
ASCENDC_HOST_UNARY(Ln, ascendc_host::VectorOp::kDivExpLn, ascendc_host::LnLane, "Ln: the 910B supports half and float",
                   half, float)
ASCENDC_HOST_UNARY(Abs, ascendc_host::VectorOp::kArithmetic, ascendc_host::AbsLane,
                   "Abs: the 910B supports half and float", half, float)

#undef ASCENDC_HOST_UNARY

}  // namespace AscendC
