// The elements of a head that pass the threshold, in a granule: some neighbouring keys of one sequence and KV head.
#pragma once

#include <algorithm>
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

// The largest of scores that are not NaN.
inline float largest_score(const float* scores, int padded)
{
    Floats lanes = broadcast(-kInfinity);
    for (int first = 0; first < padded; first += kLanes) {
        lanes = larger(load(scores + first), lanes);
    }
    return largest(lanes);
}

// The first key of the largest score; 0 where there is none but NaN.
inline int32_t first_largest(const float* scores, int padded, float maximum)
{
    const Floats largest = broadcast(maximum);
    for (int first = 0; first < padded; first += kLanes) {
        const uint32_t found = bits(equal(load(scores + first), largest));
        if (found != 0) {
            return first + __builtin_ctz(found);
        }
    }
    return 0;
}

// Turns padded scores into weights, exp(a - maximum), where `replaces` is set; gives their sum.
inline float weigh_head(float* scores, int padded, float maximum, bool replaces)
{
    const Floats base = broadcast(exponent_base(maximum));
    Floats total = zero();
    for (int first = 0; first < padded; first += kLanes) {
        const Floats weight = exponential(subtract(load(scores + first), base));
        total = add(total, weight);
        if (replaces) {
            store(scores + first, weight);
        }
    }
    return sum(total);
}

// The weight that corresponds to a threshold in score units, which no weight of the granule is above if no score is.
inline float weight_of(float threshold, float maximum)
{
    return std::exp(std::min(threshold - exponent_base(maximum), 0.0F));
}

// Turns the scores of a head, or its weights, into the weights of what lies above the threshold and 0 elsewhere.
//
// They are padded with -inf, or 0, to whole vectors. The bits of the kept keys are written to `kept_keys`, one word per
// vector, and added to `unions`; the masses and the number of what is kept go to `part`.
template <bool kAreWeights>
void select_head(float* scores, int count, float threshold, HeadPart& part, uint32_t* kept_keys, uint32_t* unions)
{
    const Floats base = broadcast(exponent_base(part.maximum)), least = broadcast(threshold);
    Floats kept_mass = zero(), discarded_mass = zero();
    part.kept = 0;
    for (int first = 0, word = 0; first < count; first += kLanes, ++word) {
        const Floats score = load(scores + first);
        const Floats weight = kAreWeights ? score : exponential(subtract(score, base));
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
