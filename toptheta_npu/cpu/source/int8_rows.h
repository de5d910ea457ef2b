// Rounds the K and V rows of new tokens to int8 and writes them into pages, each with a scale of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arguments.h"
#include "elements.h"
#include "int8_rounding.h"

namespace toptheta {

// The cache of a layer, packed by ../page_sums.py in this order. Strides are in elements; the numbers of a row and the
// scales of neighbouring rows lie side by side, and those of V a constant number behind those of K.
struct Int8Cache {
    int64_t blocks;
    int64_t block_size;
    int64_t heads;
    int64_t head_dim;
    int8_t* numbers;  // [blocks, Hkv, 2, block_size, D]
    int64_t numbers_block_stride;
    int64_t numbers_head_stride;
    float* scales;  // [blocks, Hkv, 2, block_size]
    int64_t scales_block_stride;
    int64_t scales_head_stride;
};

// K or V of the new tokens, [T, Hkv, D], whose elements lie side by side.
struct NewTokens {
    const void* data;
    int64_t token_stride;
    int64_t head_stride;
};

template <class Element>
class Int8Rows {
public:
    Int8Rows(const Int8Cache& cache)
        : cache_(cache), steps_((cache.head_dim + kLanes - 1) / kLanes), row_(steps_ * kLanes)
    {}

    // `kind`: 0 for K, 1 for V.
    void write(const NewTokens& from, int64_t token, int64_t slot, int64_t kind)
    {
        const int64_t block = slot / cache_.block_size, place = slot % cache_.block_size;
        for (int64_t head = 0; head < cache_.heads; ++head) {
            const auto* elements = static_cast<const Stored*>(from.data) + token * from.token_stride;
            load(elements + head * from.head_stride);
            const float scale = largest_magnitude(row_.data(), cache_.head_dim) / kLargestNumber;
            const int64_t row = kind * cache_.block_size + place;
            cache_.scales[block * cache_.scales_block_stride + head * cache_.scales_head_stride + row] = scale;
            int8_t* numbers = cache_.numbers + block * cache_.numbers_block_stride + head * cache_.numbers_head_stride;
            round_row(row_.data(), cache_.head_dim, scale, numbers + row * cache_.head_dim);
        }
    }

private:
    using Stored = typename Element::Stored;

    void load(const Stored* from)
    {
        int64_t done = 0;
        for (; done + kLanes <= cache_.head_dim; done += kLanes) {
            store(row_.data() + done, Element::load_in_order(from + done));
        }
        if (done < cache_.head_dim) {
            Stored padded[kLanes] = {};
            std::copy_n(from + done, cache_.head_dim - done, padded);
            store(row_.data() + done, Element::load_in_order(padded));
        }
    }

    const Int8Cache& cache_;
    int64_t steps_;
    std::vector<float> row_;
};

}  // namespace toptheta
