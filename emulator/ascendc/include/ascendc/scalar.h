// Instructions of the scalar unit: bit counts and conversions of one number.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rounding.h"

namespace AscendC {

template <int countValue>
int64_t ScalarGetCountOfValue(uint64_t valueIn)
{
    static_assert(countValue == 0 || countValue == 1, "ScalarGetCountOfValue counts zeros or ones");
    const int ones = __builtin_popcountll(valueIn);
    return countValue == 1 ? ones : 64 - ones;
}

inline int64_t ScalarCountLeadingZero(uint64_t valueIn) { return valueIn == 0 ? 64 : __builtin_clzll(valueIn); }

// Bits below the sign bit that equal it, from the top; -1 for 0 and -1, where all of them do.
inline int64_t CountBitsCntSameAsSignBit(int64_t valueIn)
{
    if (valueIn == 0 || valueIn == -1) return -1;
    return __builtin_clrsbll(valueIn);
}

// The position of the lowest bit that has the value; -1 when there is none.
template <int countValue>
int64_t ScalarGetSFFValue(uint64_t valueIn)
{
    static_assert(countValue == 0 || countValue == 1, "ScalarGetSFFValue looks for a zero or a one");
    const uint64_t bits = countValue == 1 ? valueIn : ~valueIn;
    return bits == 0 ? -1 : __builtin_ctzll(bits);
}

template <typename srcT, typename dstT, RoundMode roundMode>
dstT ScalarCast(srcT valueIn)
{
    constexpr bool toHalf = std::is_same_v<dstT, half> && roundMode == RoundMode::CAST_ODD;
    constexpr bool toInteger =
        std::is_same_v<dstT, int32_t> && (roundMode == RoundMode::CAST_ROUND || roundMode == RoundMode::CAST_CEIL ||
                                          roundMode == RoundMode::CAST_FLOOR || roundMode == RoundMode::CAST_RINT);
    static_assert(std::is_same_v<srcT, float> && (toHalf || toInteger),
                  "ScalarCast: float to half with CAST_ODD, or to int32_t with CAST_ROUND, CEIL, FLOOR or RINT");
    return ascendc_host::Convert<dstT, float, roundMode>(valueIn);
}

}  // namespace AscendC
