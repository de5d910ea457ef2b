// The weighted sum of V rows: each row is read once for all rows of a block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elements.h"
#include "rows.h"
#include "scales.h"
#include "scores.h"

namespace toptheta {

// Rows of V that are called into the cache ahead of the rows at hand.
template <class Element>
constexpr int kPrefetchedRows = sizeof(typename Element::Stored) == 1 ? 32 : 16;

// The weights of the keys of a granule, one row of them per head.
struct Weights {
    const float* values;
    int64_t head_stride;

    float of(int head, int32_t key) const { return values[head * head_stride + key]; }
};

// The keys of a granule that some row keeps, and those of each row: a word of bits for kLanes keys.
struct KeptKeys {
    const uint32_t* unions;
    const uint32_t* by_row;  // [rows][words]
    int words;

    const uint32_t* of_row(int row) const { return by_row + row * words; }
};

// Multiplies the weights of the listed keys, `first` + keys[i], with the scales of their rows; gives false where one of
// the scales is negative or not finite. `is_whole` says that the list is that of all keys from 0 on.
inline bool scale_weights(const RowScales& scales, int64_t first, const int32_t* keys, int count, bool is_whole,
                          int heads, float* weights, int64_t head_stride)
{
    Mask bad = is_nan(zero());
    for (int done = 0; done < count; done += kLanes) {
        const int some = count - done < kLanes ? count - done : kLanes;
        const Floats lanes =
            is_whole ? scales.of_neighbours(first + done, some) : scales.of_listed(first, keys + done, some);
        bad = either(bad, are_bad_scales(lanes));
        float each[kLanes];
        store(each, lanes);
        for (int head = 0; head < heads; ++head) {
            float* of_head = weights + head * head_stride;
            if (is_whole) {
                // the weights past the last key are zeros
                store(of_head + done, multiply(load(of_head + done), lanes));
                continue;
            }
            for (int i = 0; i < some; ++i) {
                of_head[keys[done + i]] *= each[i];
            }
        }
    }
    return bits(bad) == 0;
}

// Adds `Count` rows, weighted for each head, to the heads' sums. A block of registers holds `Steps` steps of the rows.
template <class Element, int Count, int Steps>
inline void add_block(const typename Element::Stored* const* rows, const int32_t* keys, int step,
                      const Weights& weights, int heads, float* sums, int64_t sums_stride)
{
    constexpr int kVectors = Steps * Element::kVectors;
    Floats parts[Count][kVectors];
    for (int r = 0; r < Count; ++r) {
        for (int s = 0; s < Steps; ++s) {
            Element::load(rows[r] + (step + s) * Element::kStep, parts[r] + s * Element::kVectors);
        }
    }
    for (int head = 0; head < heads; ++head) {
        float* sum = sums + head * sums_stride + step * Element::kStep;
        Floats totals[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            totals[v] = load(sum + v * kLanes);
        }
        for (int r = 0; r < Count; ++r) {
            const Floats weight = broadcast(weights.of(head, keys[r]));
            for (int v = 0; v < kVectors; ++v) {
                totals[v] = multiply_add(weight, parts[r][v], totals[v]);
            }
        }
        for (int v = 0; v < kVectors; ++v) {
            store(sum + v * kLanes, totals[v]);
        }
    }
}

template <class Element>
class WeightedValues {
public:
    using Stored = typename Element::Stored;

    // `first_key` is the key that number 0 in the lists of `add` stands for.
    WeightedValues(const Rows<Element>& values, int64_t head_dim, int64_t first_key)
        : values_(values),
          first_key_(first_key),
          steps_(static_cast<int>((head_dim + Element::kStep - 1) / Element::kStep))
    {
        std::fill(&copied_[0][0], &copied_[0][0] + kValueRows * kLength, Stored{});
    }

    // sums[head] += weight[head][key] V[key] for each of the listed keys, in their order.
    void add(const int32_t* keys, int count, const Weights& weights, int heads, float* sums, int64_t sums_stride)
    {
        const Stored* rows[kValueRows];
        constexpr int kAhead = kPrefetchedRows<Element>;
        for (int r = 0; r < std::min(count, kAhead); ++r) {
            prefetch<kNearCache>(values_[first_key_ + keys[r]], steps_ * Element::kStep);
        }
        int done = 0;
        for (; done + kValueRows <= count; done += kValueRows) {
            for (int r = 0; r < kValueRows; ++r) {
                rows[r] = row(keys[done + r], r);
                if (done + r + kAhead < count) {
                    prefetch<kNearCache>(values_[first_key_ + keys[done + r + kAhead]], steps_ * Element::kStep);
                }
            }
            add_rows<kValueRows>(rows, keys + done, weights, heads, sums, sums_stride);
        }
        for (; done < count; ++done) {
            rows[0] = row(keys[done], 0);
            add_rows<1>(rows, keys + done, weights, heads, sums, sums_stride);
        }
    }

    // Whether the next function can be called.
    bool can_add_kept() const { return values_.fits_steps(); }

    // The same, row of weights by row of weights, and of each only the keys that it keeps: less work where rows keep
    // different keys. V rows that several rows keep stay in the cache from one to the next.
    void add_kept(const int32_t* keys, int count, const KeptKeys& kept, const Weights& weights, int rows, float* sums,
                  int64_t sums_stride) const
    {
        int next = 0;
        for (; next < count && keys[next] < kPieceWords * kLanes; ++next) {
        }
        call_in(keys, 0, next);
        for (int word = 0; word < kept.words; word += kPieceWords) {
            const int end_word = std::min(word + kPieceWords, kept.words);
            int end = next;
            for (; end < count && keys[end] < (end_word + kPieceWords) * kLanes; ++end) {
            }
            for (int row = 0; row < rows; ++row) {
                call_in(keys, next + (end - next) * row / rows, next + (end - next) * (row + 1) / rows);
                KeptRows listed;
                for (int w = word; w < end_word; ++w) {
                    for (uint32_t left = kept.of_row(row)[w]; left != 0; left &= left - 1) {
                        const int32_t key = w * kLanes + __builtin_ctz(left);
                        listed.rows[listed.count] = values_[first_key_ + key];
                        listed.weights[listed.count++] = weights.of(row, key);
                    }
                }
                add_kept_rows(listed, sums + row * sums_stride);
            }
            next = end;
        }
    }

private:
    static constexpr int kLength = kMostHeadDim + Element::kStep;
    static constexpr int kPieceWords = 256 / kLanes;  // of keys whose V rows are called in together

    struct KeptRows {
        const Stored* rows[kPieceWords * kLanes];
        float weights[kPieceWords * kLanes];
        int count = 0;
    };

    // Calls the V rows of listed keys into the cache.
    void call_in(const int32_t* keys, int begin, int end) const
    {
        for (int i = begin; i < end; ++i) {
            prefetch<kNearCache>(values_[first_key_ + keys[i]], steps_ * Element::kStep);
        }
    }

    void add_kept_rows(const KeptRows& kept, float* sums) const
    {
        constexpr int kSteps = 8 / Element::kVectors;
        int step = 0;
        for (; step + kSteps <= steps_; step += kSteps) {
            add_kept_block<kSteps>(kept, step, sums);
        }
        for (; step < steps_; ++step) {
            add_kept_block<1>(kept, step, sums);
        }
    }

    template <int Steps>
    void add_kept_block(const KeptRows& kept, int step, float* sums) const
    {
        constexpr int kVectors = Steps * Element::kVectors;
        float* sum = sums + step * Element::kStep;
        Floats totals[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            totals[v] = load(sum + v * kLanes);
        }
        for (int i = 0; i < kept.count; ++i) {
            const Floats weight = broadcast(kept.weights[i]);
            for (int s = 0; s < Steps; ++s) {
                Floats parts[Element::kVectors];
                Element::load(kept.rows[i] + (step + s) * Element::kStep, parts);
                for (int part = 0; part < Element::kVectors; ++part) {
                    Floats& total = totals[s * Element::kVectors + part];
                    total = multiply_add(weight, parts[part], total);
                }
            }
        }
        for (int v = 0; v < kVectors; ++v) {
            store(sum + v * kLanes, totals[v]);
        }
    }

    const Stored* row(int32_t key, int place)
    {
        if (values_.fits_steps()) {
            return values_[first_key_ + key];
        }
        values_.copy(first_key_ + key, copied_[place]);
        return copied_[place];
    }

    template <int Count>
    void add_rows(const Stored* const* rows, const int32_t* keys, const Weights& weights, int heads, float* sums,
                  int64_t sums_stride)
    {
        constexpr int kSteps = kValueVectors / Element::kVectors;
        int step = 0;
        for (; step + kSteps <= steps_; step += kSteps) {
            add_block<Element, Count, kSteps>(rows, keys, step, weights, heads, sums, sums_stride);
        }
        for (; step < steps_; ++step) {
            add_block<Element, Count, 1>(rows, keys, step, weights, heads, sums, sums_stride);
        }
    }

    const Rows<Element>& values_;
    int64_t first_key_;
    int steps_;
    alignas(64) Stored copied_[kValueRows][kLength];
};

}  // namespace toptheta
