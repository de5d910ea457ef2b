// Rounds rows of K and V to int8 for caches, bit for bit as `fallback.antiquant.quantise` rounds them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "elements.h"
#include "scores.h"

namespace toptheta {

constexpr float kLargestNumber = 127.0F;

// The largest magnitude of a row; NaN where it has a NaN, so that the operator refuses its scale.
inline float largest_of_row(const float* row, int64_t count)
{
    constexpr int kTurns = 16;  // independent maxima, for the compiler's vectors
    float most[kTurns] = {}, wrong[kTurns] = {};
    const auto take = [&](int turn, float element) {
        const float magnitude = std::fabs(element);
        most[turn] = most[turn] < magnitude ? magnitude : most[turn];
        wrong[turn] += element != element ? 1.0F : 0.0F;
    };
    int64_t done = 0;
    for (; done + kTurns <= count; done += kTurns) {
        for (int turn = 0; turn < kTurns; ++turn) {
            take(turn, row[done + turn]);
        }
    }
    for (; done < count; ++done) {
        take(0, row[done]);
    }
    const bool has_nan = std::any_of(wrong, wrong + kTurns, [](float number) { return number > 0; });
    return has_nan ? std::nanf("") : *std::max_element(most, most + kTurns);
}

// To the nearest number from -127 to 127, ties to the even one; NaN to 0.
inline int8_t to_int8(float quotient)
{
    constexpr float kToNearest = 12582912.0F;  // 1.5 · 2^23: behind it a float32 has no fraction
    const float number = quotient != quotient ? 0.0F : quotient;
    const float within = std::min(std::max(number, -kLargestNumber), kLargestNumber);
    return static_cast<int8_t>(static_cast<int32_t>((within + kToNearest) - kToNearest));
}

// Rows of zeros, whose scale is 0, and those whose scale is no number become zeros.
inline void round_row(const float* row, int64_t count, float scale, int8_t* to)
{
    if (!(scale > 0) || std::isinf(scale)) {
        std::fill_n(to, count, int8_t{0});
        return;
    }
    const float* __restrict__ from = row;  // bytes may lie anywhere, as far as a compiler knows
    int8_t* __restrict__ numbers = to;
    for (int64_t i = 0; i < count; ++i) {
        numbers[i] = to_int8(from[i] / scale);
    }
}

// Where rows [B, Hkv, n, D] lie, and where they go, packed by ../int8_rows.py in this order. Strides are in elements;
// the numbers of a row lie side by side.
struct RowsToRound {
    const void* rows;
    int64_t sizes[4];
    int64_t strides[4];
    const float* channels;  // scales [Hkv, D]; null: each row has a scale of its own
    int8_t* numbers;
    int64_t numbers_strides[3];  // of sequences, heads and rows
    float* scales;               // of rows; null where channels have them
    int64_t scales_strides[3];
};

template <class Element>
class RowRounder {
public:
    explicit RowRounder(const RowsToRound& given) : given_(given) {}

    void run()
    {
        for (int64_t sequence = 0; sequence < given_.sizes[0]; ++sequence) {
            for (int64_t head = 0; head < given_.sizes[1]; ++head) {
                for (int64_t row = 0; row < given_.sizes[2]; ++row) {
                    write(sequence, head, row);
                }
            }
        }
    }

private:
    using Stored = typename Element::Stored;

    void write(int64_t sequence, int64_t head, int64_t row)
    {
        const int64_t head_dim = given_.sizes[3], *strides = given_.numbers_strides;
        load(static_cast<const Stored*>(given_.rows) + sequence * given_.strides[0] + head * given_.strides[1] +
             row * given_.strides[2]);
        int8_t* to = given_.numbers + sequence * strides[0] + head * strides[1] + row * strides[2];
        if (given_.channels != nullptr) {
            const float* channels = given_.channels + head * head_dim;
            for (int64_t i = 0; i < head_dim; ++i) {
                round_row(elements_ + i, 1, channels[i], to + i);
            }
            return;
        }
        const float scale = largest_of_row(elements_, head_dim) / kLargestNumber;
        round_row(elements_, head_dim, scale, to);
        strides = given_.scales_strides;
        given_.scales[sequence * strides[0] + head * strides[1] + row * strides[2]] = scale;
    }

    void load(const Stored* from)
    {
        const int64_t head_dim = given_.sizes[3], stride = given_.strides[3];
        for (int64_t i = 0; i < head_dim; ++i) {
            stored_[i] = from[i * stride];
        }
        for (int64_t i = 0; i < head_dim; i += kLanes) {
            store(elements_ + i, Element::load_in_order(stored_ + i));
        }
    }

    const RowsToRound& given_;
    Stored stored_[kMostHeadDim + kLanes] = {};
    float elements_[kMostHeadDim + kLanes];
};

}  // namespace toptheta
