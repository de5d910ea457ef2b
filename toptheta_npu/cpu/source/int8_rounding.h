// Rows of floats to int8 with one scale, bit for bit as `fallback.antiquant.quantise` rounds them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace toptheta {

constexpr float kLargestNumber = 127.0F;

// The largest magnitude of a row; NaN where it has a NaN, so that the operator refuses its scale.
inline float largest_magnitude(const float* row, int64_t count)
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

}  // namespace toptheta
