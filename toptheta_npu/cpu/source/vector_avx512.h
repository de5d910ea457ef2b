// The vector layer on AVX-512 (F, BW, DQ, VL), with the products of AVX512_BF16 where the unit is compiled for them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace toptheta {

constexpr int kLanes = 16;
// registers of V that a block of rows may take, next to the accumulators
constexpr int kValueRows = 4;
constexpr int kValueVectors = 4;
// query heads whose sums of 32 keys the registers hold
constexpr int kColumnHeads = 8;

using Floats = __m512;
using Words = __m512i;   // 2 kLanes of 16 bits
using Totals = __m512i;  // kLanes of 32 bits
using Mask = __mmask16;

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }
inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }

inline Mask greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask is_nan(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
inline Mask first_lanes(int count) { return static_cast<Mask>((1u << count) - 1); }
inline uint32_t bits(Mask mask) { return mask; }
inline Floats select(Mask mask, Floats a, Floats b) { return _mm512_mask_blend_ps(mask, b, a); }

inline Floats rounded(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats times_power_of_two(Floats a, Floats n) { return _mm512_scalef_ps(a, n); }

inline float sum(Floats a) { return _mm512_reduce_add_ps(a); }
inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }

template <int kOrder>
inline Floats quarters_of(Floats a, Floats b)
{
    return _mm512_shuffle_f32x4(a, b, kOrder);
}
template <int kOrder>
inline Totals quarters_of(Totals a, Totals b)
{
    return _mm512_shuffle_i32x4(a, b, kOrder);
}
template <int kOrder>
inline Floats lanes_of(Floats a, Floats b)
{
    return _mm512_shuffle_ps(a, b, kOrder);
}
template <int kOrder>
inline Totals lanes_of(Totals a, Totals b)
{
    return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), kOrder));
}
inline Floats low_lanes(Floats a, Floats b) { return _mm512_unpacklo_ps(a, b); }
inline Totals low_lanes(Totals a, Totals b) { return _mm512_unpacklo_epi32(a, b); }
inline Floats high_lanes(Floats a, Floats b) { return _mm512_unpackhi_ps(a, b); }
inline Totals high_lanes(Totals a, Totals b) { return _mm512_unpackhi_epi32(a, b); }
inline Totals add(Totals a, Totals b) { return _mm512_add_epi32(a, b); }

// of two vectors one, each half of which holds the parts of one sum
constexpr int kJoinedApart = 4;
inline Floats join(Floats a, Floats b) { return add(quarters_of<0x44>(a, b), quarters_of<0xEE>(a, b)); }
inline Totals join(Totals a, Totals b) { return add(quarters_of<0x44>(a, b), quarters_of<0xEE>(a, b)); }

// each step halves the number of vectors: it adds quarters, pairs and neighbours of lanes that belong together
template <class Vector>
inline Vector sums_of_lanes(const Vector* joined)
{
    Vector quarters[4];
    for (int i = 0; i < 4; ++i) {
        const Vector a = joined[i], b = joined[i + 4];
        quarters[i] = add(quarters_of<0x88>(a, b), quarters_of<0xDD>(a, b));
    }
    const Vector low = add(low_lanes(quarters[0], quarters[1]), high_lanes(quarters[0], quarters[1]));
    const Vector high = add(low_lanes(quarters[2], quarters[3]), high_lanes(quarters[2], quarters[3]));
    return add(lanes_of<0x44>(low, high), lanes_of<0xEE>(low, high));
}
inline Floats sum_of_joined(const Floats* joined) { return sums_of_lanes(joined); }
inline Totals sum_of_joined(const Totals* joined) { return sums_of_lanes(joined); }

inline Floats load_int8(const int8_t* from)
{
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline Words widen_int8(const int8_t* from)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Words load_words(const int16_t* from) { return _mm512_loadu_si512(from); }
inline Totals no_totals() { return _mm512_setzero_si512(); }
inline Totals add_products(Totals totals, Words a, Words b)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(totals, a, b);
#else
    return _mm512_add_epi32(totals, _mm512_madd_epi16(a, b));
#endif
}
inline Floats to_floats(Totals a) { return _mm512_cvtepi32_ps(a); }
inline Floats to_floats(Floats a) { return a; }

inline Floats load_float16(const uint16_t* from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_float16(uint16_t* to, Floats values)
{
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
inline void load_bfloat16(const uint16_t* from, Floats& even, Floats& odd)
{
    const __m512i pairs = _mm512_loadu_si512(from);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
inline Floats load_bfloat16(const uint16_t* from)
{
    const __m512i halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}

#if defined(__AVX512BF16__)
constexpr bool kHasBfloat16Products = true;
using BfloatPairs = __m512bh;
inline BfloatPairs load_pairs(const uint16_t* from) { return (__m512bh)_mm512_loadu_si512(from); }
inline Floats add_products(Floats sums, BfloatPairs a, BfloatPairs b) { return _mm512_dpbf16_ps(sums, a, b); }
#else
constexpr bool kHasBfloat16Products = false;
#endif

}  // namespace toptheta
