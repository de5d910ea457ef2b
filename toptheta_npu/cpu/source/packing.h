// Rows of K or V to int8, for the cache of a model: the numbers that PyTorch's operations give, bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "elements.h"
#include "int8_rounding.h"
#include "scores.h"

namespace toptheta {

// Rows [B, Hkv, n, D] with any strides, in elements, to int8 [B, Hkv, n, pitch].
struct RowsToPack {
    const void* rows;
    int64_t sizes[4];
    int64_t strides[4];
    const float* channels;  // [Hkv, D], or null where each row has a scale of its own, in its last 4 bytes
    int8_t* packed;
    int64_t pitch;
};

inline void pack_row(const float* row, int64_t count, const float* channels, int8_t* to, int64_t pitch)
{
    if (channels != nullptr) {
        for (int64_t i = 0; i < count; ++i) {
            round_row(row + i, 1, channels[i], to + i);
        }
        return;
    }
    const float scale = largest_magnitude(row, count) / kLargestNumber;
    round_row(row, count, scale, to);
    const int64_t scale_at = pitch - static_cast<int64_t>(sizeof scale);
    std::fill(to + count, to + scale_at, int8_t{0});
    std::memcpy(to + scale_at, &scale, sizeof scale);
}

template <class Element>
void pack_rows(const RowsToPack& given)
{
    const auto* rows = static_cast<const typename Element::Stored*>(given.rows);
    const int64_t head_dim = given.sizes[3];
    int8_t* to = given.packed;
    for (int64_t sequence = 0; sequence < given.sizes[0]; ++sequence) {
        for (int64_t head = 0; head < given.sizes[1]; ++head) {
            const float* channels = given.channels == nullptr ? nullptr : given.channels + head * head_dim;
            for (int64_t row = 0; row < given.sizes[2]; ++row, to += given.pitch) {
                const auto* from =
                    rows + sequence * given.strides[0] + head * given.strides[1] + row * given.strides[2];
                typename Element::Stored stored[kMostHeadDim + kLanes] = {};
                float elements[kMostHeadDim + kLanes];
                for (int64_t i = 0; i < head_dim; ++i) {
                    stored[i] = from[i * given.strides[3]];
                }
                for (int64_t i = 0; i < head_dim; i += kLanes) {
                    store(elements + i, Element::load_in_order(stored + i));
                }
                pack_row(elements, head_dim, channels, to, given.pitch);
            }
        }
    }
}

}  // namespace toptheta
