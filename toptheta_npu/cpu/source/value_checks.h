// Checks of the values in tensors. Python words the error; here it only shows whether there is one.
#pragma once

#include <cstdint>

#include "arguments.h"
#include "query_tokens.h"
#include "scales.h"
#include "selection.h"

namespace toptheta {

inline bool are_thresholds_good(const Arguments& a)
{
    const int64_t count = (a.threshold_sequence_stride == 0 ? 1 : a.batch) * a.heads * a.threshold_tokens;
    for (int64_t i = 0; i < count; ++i) {
        const float theta = a.threshold[i];
        // no probability is above 1; +inf keeps the largest element alone
        if (theta != theta || (a.placement != kPreSoftmax && theta > 1.0F && theta < kInfinity)) {
            return false;
        }
    }
    return true;
}

inline bool are_masses_good(const Arguments& a)
{
    for (int64_t i = 0; a.discarded_mass != nullptr && i < a.batch * a.heads * a.tokens; ++i) {
        if (!(a.discarded_mass[i] >= 0.0F && a.discarded_mass[i] < kInfinity)) {
            return false;
        }
    }
    return true;
}

// Finite logarithms, or -inf for a mass of 0.
inline bool are_logarithms_good(const float* logarithms, int64_t count)
{
    for (int64_t i = 0; logarithms != nullptr && i < count; ++i) {
        if (!(logarithms[i] < kInfinity)) {
            return false;
        }
    }
    return true;
}

// Those per channel; others are checked as they are read.
inline bool are_channel_scales_good(const Arguments& a, const Scales& scales)
{
    Mask bad = is_nan(zero());
    const int64_t count = scales.are_by_channel() ? a.key_value_heads * a.head_dim : 0;
    int64_t done = 0;
    for (; done + kLanes <= count; done += kLanes) {
        bad = either(bad, are_bad_scales(load(scales.of_head(0) + done)));
    }
    for (; done < count; ++done) {
        bad = either(bad, are_bad_scales(broadcast(scales.of_head(0)[done])));
    }
    return bits(bad) == 0;
}

// The keys of a sequence lie inside the cache, and those of its tokens are among them.
inline bool are_lengths_good(const Arguments& a, int64_t b, int64_t start)
{
    if (a.are_lengths_by_token != 0) {
        for (int64_t token = 0; token < a.tokens; ++token) {
            const int64_t length = a.lengths[b * a.tokens + token];
            if (length < 0 || length > a.capacity - start) {
                return false;
            }
        }
        return true;
    }
    const int64_t length = valid_keys(a, b, start);
    if (length < 0 || length > a.capacity - start) {
        return false;
    }
    const int64_t real = real_tokens(a, b, length);
    return real >= 0 && real <= a.tokens && real <= length;
}

// Lengths, starts and block numbers lie inside the cache.
inline bool are_rows_in_cache(const Arguments& a)
{
    for (int64_t b = 0; b < a.batch; ++b) {
        const int64_t start = first_key(a, b);
        if (start < 0 || start > a.capacity || !are_lengths_good(a, b, start)) {
            return false;
        }
        const int64_t length = a.block_table == nullptr ? 0 : keys_read(a, b);
        for (int64_t page = 0; page * a.block_size < length; ++page) {
            const int32_t block = a.block_table[b * a.blocks_per_sequence + page];
            if (block < 0 || block >= a.blocks) {
                return false;
            }
        }
    }
    return true;
}

inline bool are_values_good(const Arguments& a)
{
    return are_thresholds_good(a) && are_masses_good(a) && are_logarithms_good(a.learnable_sink, a.heads) &&
           are_logarithms_good(a.row_lse, a.batch * a.heads * a.tokens) && are_rows_in_cache(a) &&
           are_channel_scales_good(a, a.key_scale) && are_channel_scales_good(a, a.value_scale);
}

}  // namespace toptheta
