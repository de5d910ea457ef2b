// dst = src op scalar: Adds Muls Maxs Mins.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "machine/defects.h"
#include "repeat_params.h"
#include "vector_binary.h"
#include "vector_lanes.h"
#include "vector_unary.h"

namespace ascendc_host {

template <typename Lane, typename T>
struct WithScalar {
    T scalar;
    bool spoilt = Planted(Defect::kBoundsSpoiltByInfinities);  // Maxs and Mins
    T operator()(T a) const
    {
        if constexpr (!std::is_integral_v<T> && (std::is_same_v<Lane, MaxLane> || std::is_same_v<Lane, MinLane>)) {
            if (spoilt && std::isinf(static_cast<float>(a))) {
                return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
            }
        }
        return Lane()(a, scalar);
    }
};

}  // namespace ascendc_host

namespace AscendC {

// The two forms of an instruction with a scalar. A macro, because a template cannot make function names.
#define ASCENDC_HOST_SCALAR(Name, Lane, message, ...)                                                              \
    template <typename T, bool isSetMask = true>                                                                   \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const T& scalarValue,                \
              const ascendc_host::MaskArgument& mask, const uint8_t repeatTimes,                                   \
              const UnaryRepeatParams& repeatParams, Where where = Where::Here())                                  \
    {                                                                                                              \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                            \
        const ascendc_host::CallSite site{#Name, where};                                                           \
        const auto shape =                                                                                         \
            ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);           \
        ascendc_host::RunUnary<ascendc_host::VectorOp::kArithmetic>(                                               \
            site, shape, ascendc_host::WithScalar<Lane, T>{scalarValue}, dstLocal, srcLocal, repeatParams);        \
    }                                                                                                              \
    template <typename T, bool isSetMask = true>                                                                   \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const T& scalarValue,                \
              const int32_t& calCount, Where where = Where::Here())                                                \
    {                                                                                                              \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                            \
        const ascendc_host::CallSite site{#Name, where};                                                           \
        const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T>, calCount);                 \
        ascendc_host::RunUnary<ascendc_host::VectorOp::kArithmetic>(                                               \
            site, shape, ascendc_host::WithScalar<Lane, T>{scalarValue}, dstLocal, srcLocal, UnaryRepeatParams()); \
    }

ASCENDC_HOST_SCALAR(Adds, ascendc_host::AddLane, "Adds: the 910B supports half, float, int16_t and int32_t", half,
                    float, int16_t, int32_t)
ASCENDC_HOST_SCALAR(Muls, ascendc_host::MulLane, "Muls: the 910B supports half, float, int16_t and int32_t", half,
                    float, int16_t, int32_t)
ASCENDC_HOST_SCALAR(Maxs, ascendc_host::MaxLane, "Maxs: the 910B supports half, float, int16_t and int32_t", half,
                    float, int16_t, int32_t)
ASCENDC_HOST_SCALAR(Mins, ascendc_host::MinLane, "Mins: the 910B supports half, float, int16_t and int32_t", half,
                    float, int16_t, int32_t)

#undef ASCENDC_HOST_SCALAR

}  // namespace AscendC
