// Scores of int8 keys: the query becomes whole numbers too, so that sums of products are exact and every instruction
// set gives the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

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

inline Floats magnitudes(const float* elements)
{
    const Floats some = load(elements);
    return larger(some, subtract(zero(), some));
}

// Of elements in whole vectors.
inline float largest_magnitude(const float* elements, int count)
{
    Floats lanes = zero();
    for (int i = 0; i < count; i += kLanes) {
        lanes = larger(magnitudes(elements + i), lanes);
    }
    return largest(lanes);
}

// Rows of a query as words of 16 bits times a unit of the row. Where `Parts` is 2, a second word has 15 bits more of
// each number.
template <int Parts>
class WholeQuery {
public:
    using Cached = Int8;
    using Lanes = Totals;
    static constexpr int kTotals = 1;
    static Lanes no_lanes() { return no_totals(); }

    explicit WholeQuery(int head_dim) : steps_((head_dim + Int8::kStep - 1) / Int8::kStep) {}

    // Takes one more row in whole steps of floats, and gives its unit: a power of two where that keeps numbers of
    // 16-bit types exact.
    float take(const float* elements, bool are_rounded)
    {
        const float most = std::max(largest_magnitude(elements, length()), kSmallestLargest);
        int exponent = 0;
        std::frexp(most, &exponent);
        const float per_unit = are_rounded ? kLargestWord / most : std::ldexp(1.0F, 16 - Parts - exponent);
        split(taken_, elements, per_unit);
        ++taken_;
        return 1.0F / per_unit;
    }

    int taken() const { return taken_; }
    int rows() const { return taken_ * Parts; }  // of words
    int steps() const { return steps_; }
    Words words(int row, int step) const { return load_words(words_[row] + step * Int8::kStep); }

    // The products of a row's whole numbers, from those of its words.
    Floats products(const Floats* of_words, int row) const
    {
        if constexpr (Parts == 1) {
            return of_words[row];
        }
        return multiply_add(of_words[2 * row + 1], broadcast(1.0F / kPerPart), of_words[2 * row]);
    }

private:
    int length() const { return steps_ * Int8::kStep; }

    void split(int row, const float* elements, float per_unit)
    {
        alignas(64) float whole[kLength];
        const Floats factor = broadcast(per_unit), finer = broadcast(Parts == 1 ? 1.0F : kPerPart);
        for (int i = 0; i < length(); i += kLanes) {
            store(whole + i, rounded(multiply(multiply(load(elements + i), factor), finer)));
        }
        for (int i = 0; i < length(); ++i) {
            const int32_t number = static_cast<int32_t>(whole[i]);
            if constexpr (Parts == 1) {
                words_[row][i] = static_cast<int16_t>(number);
            } else {
                const int32_t high = (number + (1 << 14)) >> 15;
                words_[2 * row][i] = static_cast<int16_t>(high);
                words_[2 * row + 1][i] = static_cast<int16_t>(number - high * (1 << 15));
            }
        }
    }

    static constexpr int kLength = kMostHeadDim + Int8::kStep;
    alignas(64) int16_t words_[kMostRows * Parts][kLength];
    int taken_ = 0;
    int steps_;
};

template <int Count, int Parts>
inline void multiply_step(const int8_t* key, int step, const WholeQuery<Parts>& query, int first_row,
                          Totals (&totals)[Count][1])
{
    const Words numbers = widen_int8(key + step * Int8::kStep);
    for (int row = 0; row < Count; ++row) {
        totals[row][0] = add_products(totals[row][0], numbers, query.words(first_row + row, step));
    }
}

// Whether a word of 16 bits is too coarse for a head, whose elements are followed by zeros to whole vectors: its unit
// follows from the largest element, and where most others are small beside that, what they add to scores would drown in
// rounding. Counted, so that all levels agree.
inline bool has_outliers(const float* elements, int head_dim)
{
    constexpr float kSmall = 1.0F / 16;
    const Floats least = broadcast(largest_magnitude(elements, head_dim) * kSmall);
    int large = 0;
    for (int i = 0; i < head_dim; i += kLanes) {
        const Floats each = magnitudes(elements + i);
        large += __builtin_popcount(bits(either(greater(each, least), equal(each, least))));
    }
    return 4 * large < head_dim;
}

// The scores of tiles of an int8 cache, for a query of `Element`s.
template <class Element>
class Int8Scores {
public:
    Int8Scores(const Arguments& a, const QueryRows& rows, int64_t key_value_head)
        : keys_(a, a.key, rows.sequence, key_value_head),
          coarse_(static_cast<int>(a.head_dim)),
          fine_(static_cast<int>(a.head_dim)),
          coarse_tile_(keys_, coarse_),
          fine_tile_(keys_, fine_),
          by_row_(a.key_scale.are_by_row()),
          row_scales_(a, a.key_scale, rows.sequence, key_value_head),
          bad_(is_nan(zero())),
          rows_(rows)
    {
        for (int token = 0; token < rows.tokens; ++token) {
            take_token(a, token, by_row_ ? nullptr : a.key_scale.of_head(key_value_head));
        }
    }

    void compute(const Keys& keys, int count, Floats* scores)
    {
        multiply_tile(coarse_, coarse_tile_, keys, count, scores, false);
        multiply_tile(fine_, fine_tile_, keys, count, scores, true);
        if (by_row_) {
            const Floats scales = row_scales_.of(keys, count);
            bad_ = either(bad_, are_bad_scales(scales));
            for (int row = 0; row < rows_.count(); ++row) {
                scores[row] = multiply(scores[row], scales);
            }
        }
    }

    // Whether some row's scale was negative or not finite.
    bool has_bad_scale() const { return bits(bad_) != 0; }

private:
    static constexpr int kLength = kMostHeadDim + Int8::kStep;

    // Takes the heads of a token: if one of them asks for it all are fine, as in a step of this token alone.
    void take_token(const Arguments& a, int token, const float* channels)
    {
        alignas(64) float elements[kMostHeads][kLength];
        const int first = token * rows_.heads;
        bool is_fine = sizeof(typename Element::Stored) == 4;  // float32 asks for it
        for (int head = 0; head < rows_.heads; ++head) {
            factors_[first + head] = load_row(a, first + head, channels, elements[head]);
            is_fine = is_fine || has_outliers(elements[head], static_cast<int>(a.head_dim));
        }
        for (int head = 0; head < rows_.heads; ++head) {
            const float unit = is_fine ? fine_.take(elements[head], channels != nullptr)
                                       : coarse_.take(elements[head], channels != nullptr);
            factors_[first + head] += static_cast<float>(static_cast<double>(unit) * a.scale);
            is_fine_[first + head] = is_fine;
        }
    }

    // The elements of a row in whole steps of floats, times the scales of the channels. Returns 0; NaN where an
    // element is not finite, and no whole number stands for it.
    float load_row(const Arguments& a, int row, const float* channels, float* elements)
    {
        alignas(64) typename Element::Stored stored[kLength] = {};
        const auto* from = rows_.template address<typename Element::Stored>(a, row);
        for (int64_t i = 0; i < a.head_dim; ++i) {
            stored[i] = from[i * a.query.element_stride];
        }
        const int length = fine_.steps() * Int8::kStep;
        for (int i = 0; i < length; i += kLanes) {
            store(elements + i, Element::load_in_order(stored + i));
        }
        if (channels != nullptr) {
            std::transform(elements, elements + a.head_dim, channels, elements, std::multiplies<float>());
        }
        Floats nothing = zero();
        for (int i = 0; i < length; i += kLanes) {
            nothing = multiply_add(load(elements + i), zero(), nothing);
        }
        if (std::isnan(sum(nothing))) {
            std::fill_n(elements, length, 0.0F);
        }
        return sum(nothing);
    }

    // The scores of the rows that `query` has, which are those that are fine or those that are not.
    template <int Parts>
    void multiply_tile(const WholeQuery<Parts>& query, TileProducts<WholeQuery<Parts>>& tile, const Keys& keys,
                       int count, Floats* scores, bool are_fine)
    {
        if (query.taken() == 0) {
            return;
        }
        Floats of_words[kMostRows * Parts];
        tile.compute(keys, count, of_words);
        for (int row = 0, place = 0; row < rows_.count(); ++row) {
            if (is_fine_[row] == are_fine) {
                scores[row] = multiply(query.products(of_words, place++), broadcast(factors_[row]));
            }
        }
    }

    Rows<Int8> keys_;
    WholeQuery<1> coarse_;
    WholeQuery<2> fine_;
    TileProducts<WholeQuery<1>> coarse_tile_;
    TileProducts<WholeQuery<2>> fine_tile_;
    bool by_row_;
    RowScales row_scales_;
    Mask bad_;
    QueryRows rows_;
    bool is_fine_[kMostRows];
    float factors_[kMostRows];
};

}  // namespace toptheta
