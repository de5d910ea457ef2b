#include "element.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace acl_emulator {
namespace {

float FromHalf(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    float magnitude = 0;
    if (exponent == 31) {
        magnitude = mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    } else if (exponent == 0) {
        magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    } else {
        magnitude = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    }
    return bits >> 15 != 0 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even, as nearbyint does.
uint16_t ToHalf(float value)
{
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) return sign | 0x7e00;
    if (magnitude >= 65520.0f) return sign | 0x7c00;
    if (magnitude < std::ldexp(1.0f, -14)) {
        return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(std::ldexp(magnitude, 24))));
    }
    int exponent = 0;
    const float fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
    // a carry out of the mantissa raises the exponent, as it should
    const int mantissa = static_cast<int>(std::nearbyint(std::ldexp(fraction, 11))) - 1024;
    return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + mantissa));
}

float FromBfloat16(uint16_t bits)
{
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t ToBfloat16(float value)
{
    if (std::isnan(value)) return 0x7fc0;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T>
T& At(void* data, int64_t index)
{
    return static_cast<T*>(data)[index];
}

template <typename T>
T At(const void* data, int64_t index)
{
    return static_cast<const T*>(data)[index];
}

}  // namespace

bool IsNumber(aclDataType type)
{
    switch (type) {
        case ACL_FLOAT:
        case ACL_DOUBLE:
        case ACL_FLOAT16:
        case ACL_BF16:
        case ACL_INT8:
        case ACL_UINT8:
        case ACL_BOOL:
        case ACL_INT16:
        case ACL_INT32:
        case ACL_INT64:
            return true;
        default:
            return false;
    }
}

double Load(const void* data, aclDataType type, int64_t index)
{
    switch (type) {
        case ACL_FLOAT:
            return At<float>(data, index);
        case ACL_DOUBLE:
            return At<double>(data, index);
        case ACL_FLOAT16:
            return FromHalf(At<uint16_t>(data, index));
        case ACL_BF16:
            return FromBfloat16(At<uint16_t>(data, index));
        case ACL_INT8:
            return At<int8_t>(data, index);
        case ACL_UINT8:
        case ACL_BOOL:
            return At<uint8_t>(data, index);
        case ACL_INT16:
            return At<int16_t>(data, index);
        case ACL_INT32:
            return At<int32_t>(data, index);
        default:
            return static_cast<double>(At<int64_t>(data, index));
    }
}

void Store(void* data, aclDataType type, int64_t index, double value)
{
    switch (type) {
        case ACL_FLOAT:
            At<float>(data, index) = static_cast<float>(value);
            break;
        case ACL_DOUBLE:
            At<double>(data, index) = value;
            break;
        case ACL_FLOAT16:
            At<uint16_t>(data, index) = ToHalf(static_cast<float>(value));
            break;
        case ACL_BF16:
            At<uint16_t>(data, index) = ToBfloat16(static_cast<float>(value));
            break;
        case ACL_INT8:
            At<int8_t>(data, index) = static_cast<int8_t>(value);
            break;
        case ACL_UINT8:
            At<uint8_t>(data, index) = static_cast<uint8_t>(value);
            break;
        case ACL_BOOL:
            At<uint8_t>(data, index) = value != 0 ? 1 : 0;
            break;
        case ACL_INT16:
            At<int16_t>(data, index) = static_cast<int16_t>(value);
            break;
        case ACL_INT32:
            At<int32_t>(data, index) = static_cast<int32_t>(value);
            break;
        default:
            At<int64_t>(data, index) = static_cast<int64_t>(value);
    }
}

}  // namespace acl_emulator
