// The vector layer on AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace toptheta {

constexpr int kLanes = 8;
// of 16 registers
constexpr int kValueRows = 2;
constexpr int kValueVectors = 4;
// query heads whose sums of 32 keys they hold
constexpr int kColumnHeads = 2;
constexpr bool kHasBfloat16Products = false;

using Floats = __m256;
using Words = __m256i;   // 2 kLanes of 16 bits
using Totals = __m256i;  // kLanes of 32 bits
using Mask = __m256;

inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Floats values) { _mm256_storeu_ps(to, values); }
inline Floats broadcast(float value) { return _mm256_set1_ps(value); }
inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }

inline Mask greater(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
inline Mask equal(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline Mask is_nan(Floats a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
inline Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
inline Mask first_lanes(int count)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
}
inline uint32_t bits(Mask mask) { return static_cast<uint32_t>(_mm256_movemask_ps(mask)); }
inline Floats select(Mask mask, Floats a, Floats b) { return _mm256_blendv_ps(b, a, mask); }

inline Floats rounded(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats times_power_of_two(Floats a, Floats n)
{
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return multiply(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

inline float largest(Floats a)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline float sum(Floats a)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

constexpr int kJoinedApart = 0;  // 16 registers are too few
inline Floats sum_of_each(const Floats* a)
{
    const Floats low = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    const Floats high = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

inline Floats load_int8(const int8_t* from)
{
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline Words widen_int8(const int8_t* from)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Words load_words(const int16_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline Totals add(Totals a, Totals b) { return _mm256_add_epi32(a, b); }
inline Totals no_totals() { return _mm256_setzero_si256(); }
inline Totals add_products(Totals totals, Words a, Words b)
{
    return _mm256_add_epi32(totals, _mm256_madd_epi16(a, b));
}
// what hadd does, in fewer instructions of the processor's own
inline Totals sum_of_neighbours(Totals a, Totals b)
{
    const Floats these = _mm256_castsi256_ps(a), others = _mm256_castsi256_ps(b);
    return add(_mm256_castps_si256(_mm256_shuffle_ps(these, others, 0x88)),
               _mm256_castps_si256(_mm256_shuffle_ps(these, others, 0xDD)));
}
inline Totals sum_of_each(const Totals* a)
{
    const Totals low = sum_of_neighbours(sum_of_neighbours(a[0], a[1]), sum_of_neighbours(a[2], a[3]));
    const Totals high = sum_of_neighbours(sum_of_neighbours(a[4], a[5]), sum_of_neighbours(a[6], a[7]));
    return add(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}
inline Floats to_floats(Totals a) { return _mm256_cvtepi32_ps(a); }
inline Floats to_floats(Floats a) { return a; }

inline Floats load_float16(const uint16_t* from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store_float16(uint16_t* to, Floats values)
{
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
inline void load_bfloat16(const uint16_t* from, Floats& even, Floats& odd)
{
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
inline Floats load_bfloat16(const uint16_t* from)
{
    const __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}

}  // namespace toptheta
