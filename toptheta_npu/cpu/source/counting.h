// What calibration asks of attention rows: their ranges, and how many of their elements lie in each bin.
#pragma once

#include <cmath>
#include <cstdint>

#include "selection.h"
#include "vector.h"

namespace toptheta {

// 112 bins, and before them one for what lies below: the -inf of hidden places
constexpr int kCounters = 113;
constexpr int kTables = 4;
constexpr int64_t kPiece = 512;

// The smallest element above -inf (+inf if there is none) and the largest; both are NaN where an element is.
inline void row_range(const float* row, int64_t width, float& smallest, float& largest_element)
{
    const Floats none = broadcast(-kInfinity);
    Floats low = none, high = none;  // low: the largest of the negated elements
    Mask nan = is_nan(zero());
    const auto take = [&](Floats values) {
        nan = either(nan, is_nan(values));
        low = larger(select(greater(values, none), subtract(zero(), values), none), low);
        high = larger(values, high);
    };
    int64_t column = 0;
    for (; column + kLanes <= width; column += kLanes) {
        take(load(row + column));
    }
    float rest[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
        rest[lane] = column + lane < width ? row[column + lane] : -kInfinity;
    }
    take(load(rest));
    const bool is_bad = bits(nan) != 0;
    smallest = is_bad ? NAN : -largest(low);
    largest_element = is_bad ? NAN : largest(high);
}

// Bins [i / scale, (i + 1) / scale), of which `first` comes first. Scales are powers of two, so all of this is exact;
// below 1 the floor at 1 / `finest` goes before, for otherwise tiny numbers could underflow to zero.
template <bool kCoarse>
void count_row(const float* row, int64_t width, float scale, float first, float finest, int64_t* counts)
{
    // neighbours are often in one bin: several tables, so that no increment waits for the one before
    int32_t tables[kTables][kCounters] = {};
    int32_t bins[kPiece];
    for (int64_t begin = 0; begin < width; begin += kPiece) {
        const int64_t count = width - begin < kPiece ? width - begin : kPiece;
        for (int64_t i = 0; i < count; ++i) {
            const float value = row[begin + i];
            const float scaled = kCoarse ? std::floor(value * finest) * (scale / finest) : value * scale;
            const float bin = std::floor(scaled) - first;
            bins[i] = static_cast<int32_t>(bin > -1.0F ? bin : -1.0F) + 1;
        }
        int64_t i = 0;
        for (; i + kTables <= count; i += kTables) {
            for (int table = 0; table < kTables; ++table) {
                ++tables[table][bins[i + table]];
            }
        }
        for (; i < count; ++i) {
            ++tables[0][bins[i]];
        }
    }
    for (int counter = 0; counter < kCounters; ++counter) {
        for (int table = 0; table < kTables; ++table) {
            counts[counter] += tables[table][counter];
        }
    }
}

}  // namespace toptheta
