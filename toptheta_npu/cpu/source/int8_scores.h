// Scores of int8 keys: the query becomes whole numbers too, so that sums of products are exact and every instruction
// set gives the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "arguments.h"
#include "elements.h"
#include "rows.h"
#include "scales.h"
#include "scores.h"

namespace toptheta {

// |q| <= 2^15 - 1 and |k| <= 2^7, so that even of kMostHeadDim products the sum is a number of 32 bits.
constexpr float kLargestWord = 32767.0F;
constexpr float kPerPart = 32768.0F;  // units of a part in those of the part above it
constexpr float kSmallestLargest = 1e-30F;

// The query heads of a block as words of 16 bits times a unit of the head. Where `Parts` is 2, a second word has 15
// bits more of each number: as many as float32 asks for.
template <int Parts>
class WholeQuery {
public:
    using Cached = Int8;
    using Lanes = Totals;
    static constexpr int kTotals = 1;
    static Lanes no_lanes() { return no_totals(); }

    WholeQuery(int heads, int head_dim) : heads_(heads), steps_((head_dim + Int8::kStep - 1) / Int8::kStep) {}

    // Takes a head in whole steps of floats. Units are powers of two where that keeps numbers of 16-bit types exact.
    void take(int head, const float* elements, bool are_rounded)
    {
        Floats lanes = zero();
        for (int i = 0; i < length(); i += kLanes) {
            const Floats some = load(elements + i);
            lanes = larger(larger(some, subtract(zero(), some)), lanes);
        }
        const float most = std::max(largest(lanes), kSmallestLargest);
        int exponent = 0;
        std::frexp(most, &exponent);
        const float per_unit = are_rounded ? kLargestWord / most : std::ldexp(1.0F, 16 - Parts - exponent);
        units_[head] = 1.0F / per_unit;
        split(head, elements, per_unit);
    }

    float unit(int head) const { return units_[head]; }
    int heads() const { return heads_ * Parts; }
    int steps() const { return steps_; }
    Words words(int row, int step) const { return load_words(words_[row] + step * Int8::kStep); }

    // The products of a head's whole numbers, from those of its words.
    Floats products(const Floats* of_words, int head) const
    {
        if constexpr (Parts == 1) {
            return of_words[head];
        }
        return multiply_add(of_words[2 * head + 1], broadcast(1.0F / kPerPart), of_words[2 * head]);
    }

private:
    int length() const { return steps_ * Int8::kStep; }

    void split(int head, const float* elements, float per_unit)
    {
        alignas(64) float whole[kLength];
        const Floats factor = broadcast(per_unit), finer = broadcast(Parts == 1 ? 1.0F : kPerPart);
        for (int i = 0; i < length(); i += kLanes) {
            store(whole + i, rounded(multiply(multiply(load(elements + i), factor), finer)));
        }
        for (int i = 0; i < length(); ++i) {
            const int32_t number = static_cast<int32_t>(whole[i]);
            if constexpr (Parts == 1) {
                words_[head][i] = static_cast<int16_t>(number);
            } else {
                const int32_t high = (number + (1 << 14)) >> 15;
                words_[2 * head][i] = static_cast<int16_t>(high);
                words_[2 * head + 1][i] = static_cast<int16_t>(number - high * (1 << 15));
            }
        }
    }

    static constexpr int kLength = kMostHeadDim + Int8::kStep;
    alignas(64) int16_t words_[kMostHeads * Parts][kLength];
    float units_[kMostHeads];
    int heads_;
    int steps_;
};

template <int Heads, int Steps, int Parts>
inline void multiply_row(const int8_t* row, const WholeQuery<Parts>& query, int first_head, Totals (&totals)[Heads][1])
{
    const int steps = Steps != 0 ? Steps : query.steps();
#pragma GCC unroll 8
    for (int step = 0; step < steps; ++step) {
        const Words keys = widen_int8(row + step * Int8::kStep);
        for (int head = 0; head < Heads; ++head) {
            totals[head][0] = add_products(totals[head][0], keys, query.words(first_head + head, step));
        }
    }
}

// The scores of tiles of an int8 cache, for a query of `Element`s.
template <class Element>
class Int8Scores {
public:
    Int8Scores(const Arguments& a, int64_t sequence, int64_t key_value_head, int64_t first_head, int heads)
        : keys_(a, a.key, sequence, key_value_head),
          query_(heads, static_cast<int>(a.head_dim)),
          tile_(keys_, query_),
          by_row_(a.key_scale.are_by_row()),
          row_scales_(a, a.key_scale, sequence, key_value_head),
          bad_(is_nan(zero())),
          heads_(heads)
    {
        const float* channels = by_row_ ? nullptr : a.key_scale.of_head(key_value_head);
        for (int head = 0; head < heads; ++head) {
            take_head(a, sequence, first_head + head, head, channels);
        }
    }

    void compute(int64_t first, int count, Floats* scores)
    {
        Floats of_words[kMostHeads * kParts];
        tile_.compute(first, count, of_words);
        for (int head = 0; head < heads_; ++head) {
            scores[head] = multiply(query_.products(of_words, head), broadcast(factors_[head]));
        }
        if (by_row_) {
            const Floats scales = row_scales_.of_neighbours(first, count);
            bad_ = either(bad_, are_bad_scales(scales));
            for (int head = 0; head < heads_; ++head) {
                scores[head] = multiply(scores[head], scales);
            }
        }
    }

    // Whether some row's scale was negative or not finite.
    bool has_bad_scale() const { return bits(bad_) != 0; }

private:
    static constexpr int kParts = sizeof(typename Element::Stored) == 4 ? 2 : 1;
    static constexpr int kLength = kMostHeadDim + Int8::kStep;

    void take_head(const Arguments& a, int64_t sequence, int64_t query_head, int head, const float* channels)
    {
        alignas(64) typename Element::Stored stored[kLength] = {};
        alignas(64) float elements[kLength];
        const auto* from = static_cast<const typename Element::Stored*>(a.query.data) +
                           sequence * a.query.sequence_stride + query_head * a.query.head_stride;
        for (int64_t i = 0; i < a.head_dim; ++i) {
            stored[i] = from[i * a.query.element_stride];
        }
        const int length = query_.steps() * Int8::kStep;
        for (int i = 0; i < length; i += kLanes) {
            store(elements + i, Element::load_in_order(stored + i));
        }
        for (int64_t i = 0; channels != nullptr && i < a.head_dim; ++i) {
            elements[i] *= channels[i];
        }
        Floats nothing = zero();  // NaN where an element is not finite, and no whole number stands for it
        for (int i = 0; i < length; i += kLanes) {
            nothing = multiply_add(load(elements + i), zero(), nothing);
        }
        if (std::isnan(sum(nothing))) {
            std::fill_n(elements, length, 0.0F);
        }
        query_.take(head, elements, channels != nullptr);
        factors_[head] = static_cast<float>(static_cast<double>(query_.unit(head)) * a.scale) + sum(nothing);
    }

    Rows<Int8> keys_;
    WholeQuery<kParts> query_;
    TileProducts<WholeQuery<kParts>> tile_;
    bool by_row_;
    RowScales row_scales_;
    Mask bad_;
    int heads_;
    float factors_[kMostHeads];
};

}  // namespace toptheta
