// The vector layer on NEON (AArch64), with the products of FEAT_BF16 where the unit is compiled for them.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace toptheta {

constexpr int kLanes = 4;
constexpr int kValueRows = 4;
constexpr int kValueVectors = 4;
// query heads whose sums of 32 keys the registers hold
constexpr int kColumnHeads = 2;

using Floats = float32x4_t;
using Words = int16x8_t;   // 2 kLanes of 16 bits
using Totals = int32x4_t;  // kLanes of 32 bits
using Mask = uint32x4_t;

inline Floats load(const float* from) { return vld1q_f32(from); }
inline void store(float* to, Floats values) { vst1q_f32(to, values); }
inline Floats broadcast(float value) { return vdupq_n_f32(value); }
inline Floats zero() { return vdupq_n_f32(0.0F); }
inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
inline Floats subtract(Floats a, Floats b) { return vsubq_f32(a, b); }
inline Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline Floats larger(Floats a, Floats b) { return vmaxnmq_f32(a, b); }

inline Mask greater(Floats a, Floats b) { return vcgtq_f32(a, b); }
inline Mask equal(Floats a, Floats b) { return vceqq_f32(a, b); }
inline Mask is_nan(Floats a) { return vmvnq_u32(vceqq_f32(a, a)); }
inline Mask either(Mask a, Mask b) { return vorrq_u32(a, b); }
inline Mask first_lanes(int count)
{
    const int32_t lanes[4] = {0, 1, 2, 3};
    return vcgtq_s32(vdupq_n_s32(count), vld1q_s32(lanes));
}
inline uint32_t bits(Mask mask)
{
    const uint32_t places[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(mask, vld1q_u32(places)));
}
inline Floats select(Mask mask, Floats a, Floats b) { return vbslq_f32(mask, a, b); }

inline Floats rounded(Floats a) { return vrndnq_f32(a); }
inline Floats times_power_of_two(Floats a, Floats n)
{
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}

inline float sum(Floats a) { return vaddvq_f32(a); }
inline float largest(Floats a) { return vmaxvq_f32(a); }

constexpr int kJoinedApart = 0;
inline Floats sum_of_each(const Floats* a) { return vpaddq_f32(vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3])); }

inline Floats load_int8(const int8_t* from)
{
    int32_t bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    const int16x8_t words = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
}
inline Words widen_int8(const int8_t* from) { return vmovl_s8(vld1_s8(from)); }
inline Words load_words(const int16_t* from) { return vld1q_s16(from); }
inline Totals no_totals() { return vdupq_n_s32(0); }
inline Totals add_products(Totals totals, Words a, Words b)
{
    return vmlal_high_s16(vmlal_s16(totals, vget_low_s16(a), vget_low_s16(b)), a, b);
}
inline Totals sum_of_each(const Totals* a) { return vpaddq_s32(vpaddq_s32(a[0], a[1]), vpaddq_s32(a[2], a[3])); }
inline Totals add(Totals a, Totals b) { return vaddq_s32(a, b); }
inline Floats to_floats(Totals a) { return vcvtq_f32_s32(a); }
inline Floats to_floats(Floats a) { return a; }

inline Floats load_float16(const uint16_t* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
inline void store_float16(uint16_t* to, Floats values) { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(values))); }
inline void load_bfloat16(const uint16_t* from, Floats& even, Floats& odd)
{
    const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(from));
    even = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
    odd = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xFFFF0000u)));
}
inline Floats load_bfloat16(const uint16_t* from)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(from)), 16));
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kHasBfloat16Products = true;
using BfloatPairs = bfloat16x8_t;
inline BfloatPairs load_pairs(const uint16_t* from) { return vreinterpretq_bf16_u16(vld1q_u16(from)); }
inline Floats add_products(Floats sums, BfloatPairs a, BfloatPairs b) { return vbfdotq_f32(sums, a, b); }
#else
constexpr bool kHasBfloat16Products = false;
#endif

}  // namespace toptheta
