// Vectors of floats, as wide as the instruction set that the unit is compiled for makes them. Everything above this
// layer is written once: it knows the number of lanes, `kLanes`, and no instruction.
//
// Each set defines
//   Floats, Mask       kLanes floats; one truth value for each
//   load, store, broadcast, zero, add, subtract, multiply, multiply_add (a b + c, rounded once)
//   larger(a, b)       the larger; b where a is NaN
//   greater(a, b), equal(a, b)     false where one is NaN
//   is_nan, either, first_lanes(n), bits(mask), select(mask, a, b) (a where the mask is set)
//   rounded            to the nearest integer
//   times_power_of_two(a, n)       a 2^n for integers n from -126 to 0
//   sum, largest       over the lanes
//   sum_of_each(a)     from kLanes vectors the vector of their sums
//   kJoinedApart       not 0 where vectors n and n + kJoinedApart are better joined as soon as they are there, so that
//                      fewer wait in memory: then join(a, b), one vector with parts of both sums, and sum_of_joined(a),
//                      from kLanes / 2 of these, take the place of sum_of_each
//   load_float16, store_float16    kLanes halves
//   load_bfloat16(p, even, odd)    2 kLanes elements, those at even places apart from those at odd ones
//   load_bfloat16(p)               kLanes of them in order
// and, where kHasBfloat16Products, BfloatPairs, load_pairs and add_products,
// and for products of whole numbers, which are exact,
//   Words, Totals      2 kLanes numbers of 16 bits, and kLanes of 32
//   load_int8          kLanes bytes as floats
//   widen_int8, load_words, no_totals
//   add_products(t, a, b)          adds the products of neighbours to the lanes of t, some order of lanes for each set
//   sum_of_each or join and sum_of_joined, to_floats         of Totals
#pragma once

#if defined(__AVX512F__)
#include "vector_avx512.h"
#elif defined(__AVX2__)
#include "vector_avx2.h"
#elif defined(__aarch64__)
#include "vector_neon.h"
#else
#error "expected AVX-512, AVX2 or NEON"
#endif
