// Sizes and small integer helpers of the public headers, for the 910B class (architecture 2201).
#pragma once

#include <cstdint>

#include "half.h"

namespace AscendC {

const int32_t DEFAULT_BLK_NUM = 8;
const int32_t DEFAULT_BLK_STRIDE = 1;
const uint8_t DEFAULT_REPEAT_STRIDE = 8;
const int32_t MAX_REPEAT_TIMES = 255;
const uint8_t DEFAULT_DATA_COPY_NBURST = 1;
const uint8_t DEFAULT_DATA_COPY_STRIDE = 0;
const uint16_t ONE_BLK_SIZE = 32;
constexpr uint64_t MASK_PLACEHOLDER = 0;

inline uint32_t DivCeil(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

inline uint32_t AlignUp(uint32_t a, uint32_t b) { return DivCeil(a, b) * b; }

}  // namespace AscendC
