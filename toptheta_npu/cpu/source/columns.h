// Scores of keys that lie by columns: an element of head_dim of neighbouring keys side by side, then the next element.
//
// A vector holds one element of kLanes keys, so their sums need no transposition.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "elements.h"
#include "rows.h"
#include "scores.h"
#include "selection.h"

namespace toptheta {

constexpr int kColumnVectors = 32 / kLanes;  // of keys in a tile: whole cache lines, whatever the type

// Adds the products of one element of `Vectors` vectors of keys and of `Heads` heads to `totals`.
template <class Element, int Heads, int Vectors>
inline void multiply_column(const typename Element::Stored* keys, const float* query, Floats (&totals)[Heads][Vectors])
{
    Floats parts[Vectors];
    for (int v = 0; v < Vectors; ++v) {
        parts[v] = Element::load_in_order(keys + v * kLanes);
    }
    for (int head = 0; head < Heads; ++head) {
        const Floats factor = broadcast(query[head]);
        for (int v = 0; v < Vectors; ++v) {
            totals[head][v] = multiply_add(parts[v], factor, totals[head][v]);
        }
    }
}

// scale q·k of some rows of a query.
template <class Element>
class ColumnScores {
public:
    using Stored = typename Element::Stored;

    ColumnScores(const Rows<Element>& keys, const PackedQuery<Element>& query, int head_dim, float scale)
        : keys_(keys),
          heads_(query.heads()),
          rows_(query.rows()),
          query_stride_((rows_ + kMostHeads - 1) / kMostHeads * kMostHeads),
          head_dim_(head_dim),
          scale_(broadcast(scale))
    {
        for (int row = 0; row < rows_; ++row) {
            float elements[kMostHeadDim];
            in_memory_order<Element>(query.loaded(row), head_dim, elements);
            for (int i = 0; i < head_dim; ++i) {
                query_[i * query_stride_ + row] = elements[i];
            }
        }
    }

    // The scores of keys first to first + count - 1, [rows][stride], page by page.
    void compute(int64_t first, int count, float* scores, int64_t stride)
    {
        for (int done = 0; done < count;) {
            const int64_t key = first + done, room = keys_.side_by_side(key);
            const int some = static_cast<int>(std::min<int64_t>(count - done, room));
            const Stored* next = done + some < count ? keys_[key + some] : nullptr;
            compute_page(keys_[key], some, room, next, {scores + done, stride});
            done += some;
        }
    }

private:
    static constexpr int kBlock = 16;

    struct Scores {
        float* values;
        int64_t row_stride;

        Scores after(int keys) const { return {values + keys, row_stride}; }
    };

    // `count` keys of a page that has room for `room` from the first of them on; `next` is what comes after them.
    void compute_page(const Stored* keys, int count, int64_t room, const Stored* next, const Scores& scores)
    {
        constexpr int kTile = kColumnVectors * kLanes;
        const int64_t stride = keys_.element_stride();
        int done = 0;
        for (; done + kTile <= count; done += kTile) {
            const Stored* ahead = done + kTile < count ? keys + done + kTile : next;
            multiply<kColumnVectors>(keys + done, stride, kTile, ahead, scores.after(done));
        }
        for (; done < count; done += kLanes) {
            const int some = std::min(kLanes, count - done);
            if (done + kLanes <= room) {
                // the page's keys past the last one are read too, and their scores left out
                multiply<1>(keys + done, stride, some, nullptr, scores.after(done));
            } else {
                copy(keys + done, stride, some);
                multiply<1>(copied_, kLanes, some, nullptr, scores.after(done));
            }
        }
    }

    void copy(const Stored* keys, int64_t stride, int count)
    {
        for (int i = 0; i < head_dim_; ++i) {
            Stored* to = copied_ + i * kLanes;
            std::memcpy(to, keys + i * stride, static_cast<size_t>(count) * sizeof(Stored));
            std::fill(to + count, to + kLanes, Stored{});
        }
    }

    // All rows, as many at a time as there are registers for, but of one token, so that their sums are those of a step
    // of this token alone.
    template <int Vectors>
    void multiply(const Stored* keys, int64_t stride, int count, const Stored* ahead, const Scores& scores) const
    {
        for (int first = 0; first < rows_; first += heads_) {
            multiply_token<Vectors>(keys, stride, count, first == 0 ? ahead : nullptr, first, scores);
        }
    }

    template <int Vectors>
    void multiply_token(const Stored* keys, int64_t stride, int count, const Stored* ahead, int first,
                        const Scores& scores) const
    {
        const int end = first + heads_;
        int row = first;
        for (; end - row >= kColumnHeads; row += kColumnHeads) {
            multiply_rows<kColumnHeads, Vectors>(keys, stride, count, row == first ? ahead : nullptr, row, scores);
        }
        if constexpr (kColumnHeads > 4) {
            if (end - row >= 4) {
                multiply_rows<4, Vectors>(keys, stride, count, row == first ? ahead : nullptr, row, scores);
                row += 4;
            }
        }
        if constexpr (kColumnHeads > 2) {
            if (end - row >= 2) {
                multiply_rows<2, Vectors>(keys, stride, count, row == first ? ahead : nullptr, row, scores);
                row += 2;
            }
        }
        if (end - row >= 1) {
            multiply_rows<1, Vectors>(keys, stride, count, row == first ? ahead : nullptr, row, scores);
        }
    }

    // The order of a key's sum depends on `Heads` alone, not on the tile in which it is.
    template <int Heads, int Vectors>
    void multiply_rows(const Stored* keys, int64_t stride, int count, const Stored* ahead, int first_row,
                       const Scores& scores) const
    {
        Floats totals[Heads][Vectors];
        std::fill_n(&totals[0][0], Heads * Vectors, zero());
        for (int first = 0; first < head_dim_; first += kBlock) {
            add_block<Heads, Vectors>(keys, stride, ahead, first, first_row, totals);
        }
        for (int head = 0; head < Heads; ++head) {
            for (int v = 0; v < Vectors; ++v) {
                write(toptheta::multiply(totals[head][v], scale_), count - v * kLanes,
                      scores.values + (first_row + head) * scores.row_stride + v * kLanes);
            }
        }
    }

    // Adds the products of kBlock elements of head_dim, from `first` on, to `totals`: long sums would round more.
    template <int Heads, int Vectors>
    void add_block(const Stored* keys, int64_t stride, const Stored* ahead, int first, int first_row,
                   Floats (&totals)[Heads][Vectors]) const
    {
        constexpr int kSums = std::max(1, 8 / (Heads * kColumnVectors));  // that do not wait for each other
        const int end = std::min(first + kBlock, head_dim_);
        Floats sums[kSums][Heads][Vectors];
        std::fill_n(&sums[0][0][0], kSums * Heads * Vectors, zero());
        int i = first;
        for (; i + kSums <= end; i += kSums) {
#pragma GCC unroll 8
            for (int sum = 0; sum < kSums; ++sum) {
                if (ahead != nullptr) {
                    prefetch<kNearCache>(ahead + (i + sum) * stride, kColumnVectors * kLanes);
                }
                multiply_column<Element>(keys + (i + sum) * stride, query_of(i + sum) + first_row, sums[sum]);
            }
        }
        for (; i < end; ++i) {
            multiply_column<Element>(keys + i * stride, query_of(i) + first_row, sums[0]);
        }
        for (int head = 0; head < Heads; ++head) {
            for (int v = 0; v < Vectors; ++v) {
                for (int sum = 0; sum < kSums; ++sum) {
                    totals[head][v] = add(totals[head][v], sums[sum][head][v]);
                }
            }
        }
    }

    static void write(Floats values, int count, float* to)
    {
        if (count >= kLanes) {
            store(to, values);
            return;
        }
        float some[kLanes];
        store(some, values);
        std::memcpy(to, some, static_cast<size_t>(count) * sizeof(float));
    }

    const float* query_of(int i) const { return query_ + i * query_stride_; }

    const Rows<Element>& keys_;
    int heads_;  // of a token
    int rows_;
    int query_stride_;
    int head_dim_;
    Floats scale_;
    float query_[kMostHeadDim * kMostRows];  // [head_dim][query_stride]
    alignas(64) Stored copied_[kMostHeadDim * kLanes];
};

// Hides the scores from `count` to `padded` by -inf; gives the largest of those before.
inline float pad_scores(float* scores, int count, int padded)
{
    std::fill(scores + count, scores + padded, -kInfinity);
    return largest_score(scores, padded);
}

}  // namespace toptheta
