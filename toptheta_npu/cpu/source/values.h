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

    // The same, and each V row only for the rows of weights that keep it: less work where these keep different keys.
    void add_kept(const int32_t* keys, int count, const KeptKeys& kept, const Weights& weights, int rows, float* sums,
                  int64_t sums_stride) const
    {
        int at = 0, called_in = 0;  // of the list
        KeepingRows keeping;
        for (int word = 0; word < kept.words; ++word) {
            if (kept.unions[word] == 0) {
                continue;
            }
            keeping.find(kept, word, rows);
            for (uint32_t left = kept.unions[word]; left != 0; left &= left - 1) {
                const int lane = __builtin_ctz(left);
                const int32_t key = word * kLanes + lane;
                for (; keys[at] < key; ++at) {
                }
                for (; called_in < std::min(at + kPrefetchedRows<Element> + 1, count); ++called_in) {
                    prefetch<kNearCache>(values_[first_key_ + keys[called_in]], steps_ * Element::kStep);
                }
                const Stored* value = values_[first_key_ + key];
                for (int i = 0; i < keeping.counts[lane]; ++i) {
                    const int row = keeping.rows[lane][i];
                    add_row(value, weights.of(row, key), sums + row * sums_stride);
                }
            }
        }
    }

private:
    static constexpr int kLength = kMostHeadDim + Element::kStep;

    // The rows of weights that keep each key of a word.
    struct KeepingRows {
        uint8_t rows[kLanes][kMostBlockRows];
        int counts[kLanes];

        void find(const KeptKeys& kept, int word, int count)
        {
            std::fill_n(counts, kLanes, 0);
            for (int row = 0; row < count; ++row) {
                for (uint32_t left = kept.of_row(row)[word]; left != 0; left &= left - 1) {
                    const int lane = __builtin_ctz(left);
                    rows[lane][counts[lane]++] = static_cast<uint8_t>(row);
                }
            }
        }
    };

    void add_row(const Stored* value, float weight, float* sum) const
    {
        constexpr int kSteps = 8 / Element::kVectors;
        const Floats factor = broadcast(weight);
        int step = 0;
        for (; step + kSteps <= steps_; step += kSteps) {
            add_steps<kSteps>(value, factor, step, sum);
        }
        for (; step < steps_; ++step) {
            add_steps<1>(value, factor, step, sum);
        }
    }

    template <int Steps>
    static void add_steps(const Stored* value, Floats weight, int step, float* sum)
    {
        for (int s = step; s < step + Steps; ++s) {
            Floats parts[Element::kVectors];
            Element::load(value + s * Element::kStep, parts);
            for (int part = 0; part < Element::kVectors; ++part) {
                float* to = sum + (s * Element::kVectors + part) * kLanes;
                store(to, multiply_add(weight, parts[part], load(to)));
            }
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
