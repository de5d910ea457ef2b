// The elements of a head that pass the threshold, in a granule: some neighbouring keys of one sequence and KV head.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "exponential.h"
#include "vector.h"

namespace toptheta {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What a granule says of one query head. Masses are sums of exp(a - maximum); they are NaN where a score is.
struct HeadPart {
    float maximum;
    float kept_mass;
    float discarded_mass;
    int32_t kept;
    int32_t largest_key;      // the lowest key of the largest score; only where nothing is kept
    bool largest_is_fetched;  // whether another head of the block keeps that key
};

// The maximum that exponents are taken relative to: where all scores are -inf, any number will do.
inline float exponent_base(float maximum) { return maximum == -kInfinity ? 0.0F : maximum; }

// The sum of exp(a - maximum) over padded scores.
inline float total_mass(const float* scores, int padded, float maximum)
{
    const Floats base = broadcast(exponent_base(maximum));
    Floats total = zero();
    for (int first = 0; first < padded; first += kLanes) {
        total = add(total, exponential(subtract(load(scores + first), base)));
    }
    return sum(total);
}

inline int32_t first_largest(const float* scores, int count, float maximum)
{
    for (int key = 0; key < count; ++key) {
        if (scores[key] == maximum) {
            return key;
        }
    }
    return 0;
}

// Turns the scores of a head into weights, exp(a - maximum) where a > threshold and 0 elsewhere.
//
// `scores` are padded with -inf to whole vectors. The bits of the kept keys are written to `kept_keys`, one word per
// vector, and added to `unions`.
inline HeadPart select_head(float* scores, int count, float threshold, float maximum, uint32_t* kept_keys,
                            uint32_t* unions)
{
    HeadPart part{maximum, 0.0F, 0.0F, 0, 0, false};
    if (!(maximum > threshold)) {
        part.largest_key = first_largest(scores, count, maximum);
    }
    const Floats base = broadcast(exponent_base(maximum)), least = broadcast(threshold);
    Floats kept_mass = zero(), discarded_mass = zero();
    for (int first = 0, word = 0; first < count; first += kLanes, ++word) {
        const Floats score = load(scores + first);
        const Floats weight = exponential(subtract(score, base));
        const Mask keep = greater(score, least);
        const Floats kept = select(keep, weight, zero());
        store(scores + first, kept);
        kept_mass = add(kept_mass, kept);
        discarded_mass = add(discarded_mass, select(keep, zero(), weight));
        kept_keys[word] = bits(keep);
        unions[word] |= bits(keep);
        part.kept += __builtin_popcount(bits(keep));
    }
    part.kept_mass = sum(kept_mass);
    part.discarded_mass = sum(discarded_mass);
    return part;
}

inline int count_keys(const uint32_t* unions, int words)
{
    int count = 0;
    for (int word = 0; word < words; ++word) {
        count += __builtin_popcount(unions[word]);
    }
    return count;
}

// Writes the numbers of the keys whose bits are set, in ascending order.
inline int list_keys(const uint32_t* unions, int words, int32_t* keys)
{
    int count = 0;
    for (int word = 0; word < words; ++word) {
        for (uint32_t left = unions[word]; left != 0; left &= left - 1) {
            keys[count++] = word * kLanes + __builtin_ctz(left);
        }
    }
    return count;
}

}  // namespace toptheta
