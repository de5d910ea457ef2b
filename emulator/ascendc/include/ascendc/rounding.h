// Conversions between number types in every RoundMode.
//
// The nearest value comes from the host's conversion; the other modes step from it to the neighbour they ask for.
// Values outside an integer type saturate and NaN becomes 0: the model's choice, the documents do not say.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "enums.h"
#include "half.h"

namespace ascendc_host {

using AscendC::RoundMode;

// Floating-point formats by their bits; ascending bits of one sign are ascending magnitudes.
template <typename T>
struct FloatFormat;

template <>
struct FloatFormat<half> {
    using Bits = uint16_t;
    static constexpr Bits kSign = 0x8000;
    static Bits Nearest(long double value) { return FloatToHalfBits(static_cast<float>(value)); }
    static float Value(Bits bits) { return HalfBitsToFloat(bits); }
};

template <>
struct FloatFormat<bfloat16_t> {
    using Bits = uint16_t;
    static constexpr Bits kSign = 0x8000;
    static Bits Nearest(long double value) { return FloatToBfloat16Bits(static_cast<float>(value)); }
    static float Value(Bits bits) { return Bfloat16BitsToFloat(bits); }
};

template <>
struct FloatFormat<float> {
    using Bits = uint32_t;
    static constexpr Bits kSign = 0x80000000u;
    static Bits Nearest(long double value) { return FloatBits(static_cast<float>(value)); }
    static float Value(Bits bits) { return FloatFromBits(bits); }
};

// `value` is exact: every source type fits a long double.
template <typename T, RoundMode mode>
typename FloatFormat<T>::Bits RoundToFormat(long double value)
{
    using Format = FloatFormat<T>;
    using Bits = typename Format::Bits;
    const Bits nearest = Format::Nearest(value);
    const long double rounded = Format::Value(nearest);
    if (mode == RoundMode::CAST_NONE || mode == RoundMode::CAST_RINT || !(rounded != value)) return nearest;
    if (std::isnan(value)) return nearest;
    const Bits sign = nearest & Format::kSign;
    const bool away = std::fabs(rounded) > std::fabs(value);  // the nearest one lies further from zero
    const Bits inner = away ? static_cast<Bits>(nearest - 1) : nearest;
    const Bits outer = static_cast<Bits>(inner + 1);
    switch (mode) {
        case RoundMode::CAST_TRUNC:
            return inner;
        case RoundMode::CAST_FLOOR:
            return sign != 0 ? outer : inner;
        case RoundMode::CAST_CEIL:
            return sign != 0 ? inner : outer;
        case RoundMode::CAST_ODD:
            return (inner & 1) != 0 ? inner : outer;
        default:
            break;
    }
    if (std::isinf(rounded)) return nearest;
    const long double toInner = std::fabs(value) - std::fabs(static_cast<long double>(Format::Value(inner)));
    const long double toOuter = std::fabs(static_cast<long double>(Format::Value(outer))) - std::fabs(value);
    return toOuter <= toInner ? outer : inner;
}

template <RoundMode mode>
long double RoundToInteger(long double value)
{
    switch (mode) {
        case RoundMode::CAST_FLOOR:
            return std::floor(value);
        case RoundMode::CAST_CEIL:
            return std::ceil(value);
        case RoundMode::CAST_TRUNC:
            return std::trunc(value);
        case RoundMode::CAST_ROUND:
            return std::round(value);
        default:
            return std::nearbyint(value);
    }
}

template <typename T>
T Saturate(long double value)
{
    if (std::isnan(value)) return 0;
    if (value <= static_cast<long double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (value >= static_cast<long double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return static_cast<T>(value);
}

inline float ExactFloat(half value) { return HalfBitsToFloat(value.bits); }
inline float ExactFloat(bfloat16_t value) { return Bfloat16BitsToFloat(value.bits); }
template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, bool> = true>
long double ExactFloat(T value)
{
    return value;
}
inline float ExactFloat(float value) { return value; }

template <typename T>
constexpr bool kIsFloatFormat = std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t> || std::is_same_v<T, float>;

template <typename D, typename S, RoundMode mode>
D Convert(S value)
{
    if constexpr (std::is_same_v<D, float> && !std::is_integral_v<S> && !std::is_same_v<S, float>) {
        return ExactFloat(value);  // widening is exact
    } else if constexpr (std::is_same_v<D, float> && std::is_same_v<S, float>) {
        return static_cast<float>(RoundToInteger<mode>(value));  // float to float rounds to whole numbers
    } else if constexpr (std::is_same_v<S, float> && std::is_same_v<D, half> &&
                         (mode == RoundMode::CAST_NONE || mode == RoundMode::CAST_RINT)) {
        return half(value);
    } else if constexpr (kIsFloatFormat<D>) {
        const auto bits = RoundToFormat<D, mode>(ExactFloat(value));
        D result;
        std::memcpy(&result, &bits, sizeof(result));
        return result;
    } else {
        return Saturate<D>(RoundToInteger<mode>(ExactFloat(value)));
    }
}

}  // namespace ascendc_host
