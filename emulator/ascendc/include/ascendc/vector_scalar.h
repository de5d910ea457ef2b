// dst = src op scalar: Adds Muls Maxs Mins ShiftLeft ShiftRight.
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

// Shifting by the width of the type or more gives what is left after shifting one by one.
struct ShiftLeftLane {
    template <typename T>
    T operator()(T a, T distance) const
    {
        constexpr T bits = sizeof(T) * 8;
        return distance >= bits ? T{0} : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << distance);
    }
};

// Arithmetic for signed types, logical for unsigned ones.
struct ShiftRightLane {
    template <typename T>
    T operator()(T a, T distance) const
    {
        constexpr T bits = sizeof(T) * 8;
        return static_cast<T>(a >> (distance >= bits ? static_cast<T>(bits - 1) : distance) >>
                              (distance >= bits ? 1 : 0));
    }
};

template <typename Lane, typename T>
void CheckScalar(const CallSite& site, const T& scalar)
{
    if constexpr (std::is_same_v<Lane, ShiftLeftLane> || std::is_same_v<Lane, ShiftRightLane>) {
        const int64_t distance = static_cast<int64_t>(scalar);
        if (distance >= 0 && distance <= static_cast<int64_t>(sizeof(T) * 8)) return;
        site.Report(Check::kParameter, "the shift distance is " + std::to_string(distance),
                    "shift by 0 to " + std::to_string(sizeof(T) * 8) + " bits");
    }
}

}  // namespace ascendc_host

namespace AscendC {

// The three forms of an instruction with a scalar. A macro, because a template cannot make function names.
#define ASCENDC_HOST_SCALAR(Name, Lane, message, ...)                                                                \
    template <typename T, bool isSetMask = true>                                                                     \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const T& scalarValue, uint64_t mask[], \
              const uint8_t repeatTimes, const UnaryRepeatParams& repeatParams, Where where = Where::Here())         \
    {                                                                                                                \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                              \
        const ascendc_host::CallSite site{#Name, where};                                                             \
        ascendc_host::CheckScalar<Lane>(site, scalarValue);                                                          \
        const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>,                  \
                                                                   static_cast<const uint64_t*>(mask), repeatTimes); \
        ascendc_host::RunUnary<ascendc_host::VectorOp::kArithmetic>(                                                 \
            site, shape, ascendc_host::WithScalar<Lane, T>{scalarValue}, dstLocal, srcLocal, repeatParams);          \
    }                                                                                                                \
    template <typename T, bool isSetMask = true>                                                                     \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const T& scalarValue, uint64_t mask,   \
              const uint8_t repeatTimes, const UnaryRepeatParams& repeatParams, Where where = Where::Here())         \
    {                                                                                                                \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                              \
        const ascendc_host::CallSite site{#Name, where};                                                             \
        ascendc_host::CheckScalar<Lane>(site, scalarValue);                                                          \
        const auto shape =                                                                                           \
            ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);             \
        ascendc_host::RunUnary<ascendc_host::VectorOp::kArithmetic>(                                                 \
            site, shape, ascendc_host::WithScalar<Lane, T>{scalarValue}, dstLocal, srcLocal, repeatParams);          \
    }                                                                                                                \
    template <typename T, bool isSetMask = true>                                                                     \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const T& scalarValue,                  \
              const int32_t& calCount, Where where = Where::Here())                                                  \
    {                                                                                                                \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                              \
        const ascendc_host::CallSite site{#Name, where};                                                             \
        ascendc_host::CheckScalar<Lane>(site, scalarValue);                                                          \
        const auto shape = ascendc_host::CountOrRegisterShape<isSetMask>(site, ascendc_host::kLanesOf<T>, calCount); \
        ascendc_host::RunUnary<ascendc_host::VectorOp::kArithmetic>(                                                 \
            site, shape, ascendc_host::WithScalar<Lane, T>{scalarValue}, dstLocal, srcLocal, UnaryRepeatParams());   \
    }

ASCENDC_HOST_SCALAR(Adds, ascendc_host::AddLane, "Adds: the 910B supports half, float, int16_t and int32_t", half,
                    float, int16_t, int32_t)
ASCENDC_HOST_SCALAR(Muls, ascendc_host::MulLane, "Muls: the 910B supports half, float, int16_t and int32_t", half,
                    float, int16_t, int32_t)
ASCENDC_HOST_SCALAR(Maxs, ascendc_host::MaxLane, "Maxs: the 910B supports half, float, int16_t and int32_t", half,
                    float, int16_t, int32_t)
ASCENDC_HOST_SCALAR(Mins, ascendc_host::MinLane, "Mins: the 910B supports half, float, int16_t and int32_t", half,
                    float, int16_t, int32_t)
ASCENDC_HOST_SCALAR(ShiftLeft, ascendc_host::ShiftLeftLane,
                    "ShiftLeft: the 910B supports int16_t, uint16_t, int32_t and uint32_t", int16_t, uint16_t, int32_t,
                    uint32_t)
ASCENDC_HOST_SCALAR(ShiftRight, ascendc_host::ShiftRightLane,
                    "ShiftRight: the 910B supports int16_t, uint16_t, int32_t and uint32_t", int16_t, uint16_t, int32_t,
                    uint32_t)

#undef ASCENDC_HOST_SCALAR

}  // namespace AscendC
