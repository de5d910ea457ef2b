// What Python hands over: one struct of 8-byte fields, packed by plans.py in this order.
#pragma once

#include <cstdint>

namespace toptheta {

// A query, K or V. Strides are in elements. A paged cache has blocks where a contiguous one has sequences.
struct TensorView {
    const void* data;
    int64_t sequence_stride;
    int64_t head_stride;
    int64_t row_stride;
    int64_t element_stride;

    // Whether neighbouring rows lie side by side, element by element.
    bool lies_by_columns() const { return row_stride == 1 && element_stride != 1; }
};

enum ScaleType : int64_t { kFloat32Scales = 0, kFloat16Scales = 1, kBFloat16Scales = 2 };

// What the numbers of an int8 cache are multiplied with; no data: the cache is of the query's type. Per channel they
// are contiguous float32 [Hkv, D] with an element stride of 1; per token and head, numbers as in the rows of a cache
// with an element stride of 0.
struct Scales {
    TensorView view;
    int64_t type;

    bool are_there() const { return view.data != nullptr; }
    bool are_by_channel() const { return are_there() && view.element_stride != 0; }
    bool are_by_row() const { return are_there() && view.element_stride == 0; }
    // of a KV head, per channel
    const float* of_head(int64_t head) const { return static_cast<const float*>(view.data) + head * view.head_stride; }
};

// int32 or int64 [B]; data is null where nothing was given.
struct Integers {
    const void* data;
    int64_t are_64_bits;

    int64_t operator[](int64_t index) const
    {
        return are_64_bits != 0 ? static_cast<const int64_t*>(data)[index] : static_cast<const int32_t*>(data)[index];
    }
};

enum Result : int64_t { kOutput = 0, kOutputWithStatistics = 1, kPartial = 2 };
enum Placement : int64_t { kPreSoftmax = 0, kPostSoftmax = 1, kSampledSoftmax = 2 };
enum Compensation : int64_t { kNone = 0, kExact = 1, kExpThreshold = 2, kOffline = 3 };
enum Path : int64_t { kAuto = 0, kGather = 1, kDense = 2 };

// GOMP_parallel of the OpenMP runtime that PyTorch has loaded.
using RunInParallel = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

struct Arguments {
    int64_t batch;
    int64_t heads;
    int64_t key_value_heads;
    int64_t head_dim;
    int64_t tokens;  // of the query, Sq
    int64_t capacity;  // keys per sequence that the cache has room for
    TensorView query;  // its rows are tokens
    TensorView key;
    TensorView value;
    const float* threshold;             // [B or 1, Hq, Sq or 1]
    int64_t threshold_sequence_stride;  // 0 where all sequences share it
    int64_t threshold_tokens;           // Sq, or 1 where all tokens share it
    Integers lengths;                   // [B], of which each token's follow; or of parts [B, Sq]
    int64_t are_lengths_by_token;
    Integers starts;
    const int32_t* block_table;  // [B, blocks_per_sequence], or null
    int64_t blocks_per_sequence;
    int64_t block_size;
    int64_t blocks;
    Scales key_scale;
    Scales value_scale;
    Integers query_lengths;       // [B], real tokens
    const float* discarded_mass;  // [B, Hq, Sq], or null
    const float* value_mean;      // [B, Hkv, Sq, D], or null
    const float* learnable_sink;  // [Hq], or null
    const float* row_lse;         // [B, Hq, Sq], of whole rows of which these keys are a part, or null
    double scale;
    double sdc_gamma;
    int64_t result;
    int64_t placement;
    int64_t sdc;
    int64_t path;
    int64_t is_out_by_token;  // whether tokens come before heads in `out`
    // outputs, contiguous; which of them are there depends on `result`
    void* out;              // [B, Hq, Sq, D] or [B, Sq, Hq, D]: elements, or float for a partial result
    float* lse;             // [B, Hq, Sq]
    int32_t* kept;          // [B, Hq, Sq]
    int32_t* value_rows;    // [B, Hkv]
    float* maximum;         // [B, Hq, Sq]
    float* kept_mass;       // [B, Hq, Sq]
    float* discarded_part;  // [B, Hq, Sq], E of a partial result
    int64_t threads;
    RunInParallel run_in_parallel;
};

// Status of a call.
enum Status : int32_t { kDone = 0, kBadValues = 1, kOutOfMemory = 2 };

}  // namespace toptheta
