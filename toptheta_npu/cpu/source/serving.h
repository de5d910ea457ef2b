// What a layer of a serving engine does in a step beside its kernels for prompts: V sums, means of V rows, decode rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arguments.h"
#include "elements.h"
#include "page_sums.h"
#include "step.h"

namespace toptheta {

// What does not change from step to step, packed by ../repeated.py in this order.
struct DecodingLayer {
    Arguments arguments;  // all but what DecodingRows have, the query and the outputs
    PageSumsOfLayer sums;  // sums.sums is null where no mean is wanted
    const float* threshold;  // [places, Hq]
    const float* discarded_mass;  // [places, Hq], or null
    int64_t number;  // among the layers whose rows are counted together
};

// The rows that decode in a step; what is counted begins with the first layer's.
struct DecodingRows {
    WrittenRows written;
    int64_t batch;  // S, those with one new token
    int64_t blocks_per_sequence;
    Integers lengths;  // [S]
    const int32_t* block_table;  // [S, blocks_per_sequence]
    const int64_t* places;  // [S], of thresholds and masses in their tables
    int32_t* kept;  // [layers, S, Hq], written
    int32_t* value_rows;  // [layers, S, Hkv], written
};

// What a layer needs besides, and nobody afterwards; kept for the thread's next layer.
class Intermediate {
public:
    float* of(int64_t elements)
    {
        if (static_cast<int64_t>(content_.size()) < elements) {
            content_.resize(static_cast<size_t>(elements));
        }
        return content_.data();
    }

private:
    std::vector<float> content_;
};

inline Arguments arguments_of(const DecodingLayer& layer, const DecodingRows& rows)
{
    Arguments a = layer.arguments;
    a.batch = rows.batch;
    a.capacity = a.block_size * rows.blocks_per_sequence;
    a.threshold_sequence_stride = a.heads;
    a.lengths = rows.lengths;
    a.block_table = rows.block_table;
    a.blocks_per_sequence = rows.blocks_per_sequence;
    a.kept = rows.kept + layer.number * rows.batch * a.heads;
    a.value_rows = rows.value_rows + layer.number * rows.batch * a.key_value_heads;
    a.threads = rows.written.threads;
    a.run_in_parallel = rows.written.run_in_parallel;
    return a;
}

// Gathers the rows of a table: [S, Hq].
inline const float* look_up(const float* table, const DecodingRows& rows, int64_t heads, float* to)
{
    for (int64_t row = 0; table != nullptr && row < rows.batch; ++row) {
        std::copy_n(table + rows.places[row] * heads, heads, to + row * heads);
    }
    return table == nullptr ? nullptr : to;
}

// Makes the sums of the pieces of pages that a step has filled, and the means [sequences with one new token, Hkv, D],
// if they are wanted. False: a length or a block table is wrong, and nothing is written.
template <class Element>
inline bool make_sums(const PageSumsOfLayer& layer, const WrittenRows& written, float* mean)
{
    PageSums<Element> sums(layer, written);
    if (!sums.prepare()) {
        return false;
    }
    sums.run(mean);
    return true;
}

// The same, and then the decode step with these means: `query` [S, Hq, D], `out` [S, Hq, D] contiguous. Values are
// checked before each of the two; false: one is wrong, and `out` is not written.
template <class Element>
bool decode_layer(const DecodingLayer& layer, const DecodingRows& rows, const TensorView& query, void* out)
{
    static thread_local Intermediate intermediate;
    Arguments a = arguments_of(layer, rows);
    const int64_t of_heads = a.batch * a.heads;
    float* free = intermediate.of(3 * of_heads + a.batch * a.key_value_heads * a.head_dim);
    a.threshold = look_up(layer.threshold, rows, a.heads, free);
    a.discarded_mass = look_up(layer.discarded_mass, rows, a.heads, free + of_heads);
    a.lse = free + 2 * of_heads;
    if (layer.sums.sums != nullptr) {
        float* mean = free + 3 * of_heads;
        if (!make_sums<Element>(layer.sums, rows.written, mean)) {
            return false;
        }
        a.value_mean = mean;
    }
    a.query = query;
    a.out = out;
    return run_step<Element>(a);
}

}  // namespace toptheta
