// Sizes and small integer helpers of the public headers, for the 910B class (architecture 2201).
#pragma once

#include <cstddef>
#include <cstdint>

#include "half.h"

namespace AscendC {

const int32_t DEFAULT_BLK_NUM = 8;
const int32_t DEFAULT_BLK_STRIDE = 1;
const uint8_t DEFAULT_REPEAT_STRIDE = 8;
const uint8_t HALF_DEFAULT_REPEAT_STRIDE = 4;
const uint8_t ONE_FOURTH_DEFAULT_REPEAT_STRIDE = 2;
const uint64_t FULL_MASK = 0xffffffffffffffff;
const int32_t DEFAULT_C0_SIZE = 32;
const int32_t DEFAULT_BLOCK_SIZE = 256;
const int32_t MAX_REPEAT_TIMES = 255;
const int32_t MIN_REPEAT_TIMES = 0;
const int32_t TOTAL_VEC_LOCAL_SIZE = 184 * 1024;
const uint32_t TOTAL_UB_SIZE = 192 * 1024;
const uint32_t TMP_UB_OFFSET = 184 * 1024;
const uint8_t DEFAULT_DATA_COPY_NBURST = 1;
const uint8_t DEFAULT_DATA_COPY_STRIDE = 0;
const uint16_t ONE_BLK_SIZE = 32;
const int32_t ONE_REPEAT_BYTE_SIZE = 256;
const int32_t FULL_MASK_LEN = 128;
const int32_t DEFAULT_REDUCE_DST_REP_SRIDE = 1;
const uint8_t B64_BYTE_SIZE = 8;
const uint8_t B32_BYTE_SIZE = 4;
const uint8_t B16_BYTE_SIZE = 2;
const uint8_t B8_BYTE_SIZE = 1;
const uint8_t B32_DATA_NUM_PER_BLOCK = 8;
const uint8_t B16_DATA_NUM_PER_BLOCK = 16;
const int32_t B16_DATA_NUM_PER_REPEAT = 128;
const int32_t B32_DATA_NUM_PER_REPEAT = 64;
const uint32_t ONE_REPEAT_FLOAT_SIZE = 64;
const uint32_t ONE_REPEAT_HALF_SIZE = 128;
const uint32_t ONE_BLK_HALF_NUM = 16;
const uint32_t ONE_BLK_FLOAT_NUM = 8;
const uint32_t BRCB_BROADCAST_NUMBER = 8;
constexpr uint64_t MASK_PLACEHOLDER = 0;
constexpr size_t RESERVED_WORKSPACE = 16 * 1024 * 1024;

template <typename T, typename U>
struct IsSameType {
    static constexpr bool value = false;
};

template <typename T>
struct IsSameType<T, T> {
    static constexpr bool value = true;
};

inline uint32_t DivCeil(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

inline uint32_t AlignUp(uint32_t a, uint32_t b) { return DivCeil(a, b) * b; }

constexpr uint32_t ConstCeil(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

inline uint32_t Ceil(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

inline int32_t CeilDivision(int32_t a, int32_t b) { return b == 0 ? 0 : (a + b - 1) / b; }

constexpr int16_t GetDataBlockSizeInBytes() { return ONE_BLK_SIZE; }

}  // namespace AscendC
