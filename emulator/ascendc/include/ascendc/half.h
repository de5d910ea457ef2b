// half and bfloat16_t as storage types with correctly rounded conversions.
//
// The conversions are integer arithmetic without branches, so that both compilers vectorise them and give the same bits
// on every host; arithmetic on the types happens in float and rounds once.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ascendc_host {

inline uint32_t FloatBits(float value)
{
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float FloatFromBits(uint32_t bits)
{
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline float HalfBitsToFloat(uint16_t bits)
{
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    // Multiplying by 2^112 moves the exponent bias from 15 to 127 and normalises subnormal numbers.
    const float finite = FloatFromBits(magnitude << 13) * FloatFromBits(239u << 23);
    const uint32_t special = 0x7f800000u | ((magnitude & 0x3ffu) << 13);
    return FloatFromBits(sign | (magnitude >= 0x7c00u ? special : FloatBits(finite)));
}

inline uint16_t FloatToHalfBits(float value)
{
    const uint32_t bits = FloatBits(value);
    const uint32_t sign = bits & 0x80000000u;
    const uint32_t magnitude = bits ^ sign;
    // Below the smallest normal half the addition of 0.5 makes the host round at the right bit.
    const uint32_t subnormal = FloatBits(FloatFromBits(magnitude) + 0.5f) - FloatBits(0.5f);
    const uint32_t odd = (magnitude >> 13) & 1u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
    return static_cast<uint16_t>((magnitude >= (143u << 23) ? special : finite) | (sign >> 16));
}

inline float Bfloat16BitsToFloat(uint16_t bits) { return FloatFromBits(static_cast<uint32_t>(bits) << 16); }

inline uint16_t FloatToBfloat16Bits(float value)
{
    const uint32_t bits = FloatBits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool isNan = (bits & 0x7fffffffu) > 0x7f800000u;
    return static_cast<uint16_t>(isNan ? ((bits >> 16) | 0x40u) : rounded);
}

}  // namespace ascendc_host

struct half {
    uint16_t bits;

    half() = default;
    template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, bool> = true>
    half(T value) : bits(ascendc_host::FloatToHalfBits(static_cast<float>(value)))
    {}
    operator float() const { return ascendc_host::HalfBitsToFloat(bits); }

    static half FromBits(uint16_t bits)
    {
        half value;
        value.bits = bits;
        return value;
    }
};

// Has no conversion to float, as on the device: use AscendC::ToFloat.
struct bfloat16_t {
    uint16_t bits;

    bfloat16_t() = default;
    template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, bool> = true>
    bfloat16_t(T value) : bits(ascendc_host::FloatToBfloat16Bits(static_cast<float>(value)))
    {}

    static bfloat16_t FromBits(uint16_t bits)
    {
        bfloat16_t value;
        value.bits = bits;
        return value;
    }
};

static_assert(sizeof(half) == 2 && std::is_trivially_copyable_v<half>);
static_assert(sizeof(bfloat16_t) == 2 && std::is_trivially_copyable_v<bfloat16_t>);

namespace AscendC {

inline float ToFloat(const bfloat16_t& value) { return ascendc_host::Bfloat16BitsToFloat(value.bits); }

inline bfloat16_t ToBfloat16(const float& value) { return bfloat16_t(value); }

}  // namespace AscendC
