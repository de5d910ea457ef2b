// The scores of a tile of kLanes keys for some rows of a query, its heads and tokens: a = scale q·k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "elements.h"
#include "query_tokens.h"
#include "rows.h"
#include "selection.h"

namespace toptheta {

constexpr int kMostHeads = 8;  // query heads of a block
constexpr int kMostBlockRows = kMostHeads * kMostTokens;
constexpr int kMostRows = 32;  // of their tokens, which share each K row; of more, K is read again
constexpr int kMostHeadDim = 512;
// How far ahead of the row at hand K is called into the cache near the core, and into the next one.
constexpr int64_t kBytesToNearCache = 2 << 10;
constexpr int64_t kBytesToFarCache = 8 << 10;
constexpr int kKeysAhead = 2 * kLanes;  // where they lie here and there

template <class Element>
constexpr bool kMultipliesPairs = kHasBfloat16Products && Element::kVectors == 2;

// Rows of a query, in the order of elements that Element::load gives, and as they are stored.
template <class Element>
class PackedQuery {
public:
    using Stored = typename Element::Stored;
    using Cached = Element;  // what it is multiplied with
    using Lanes = Floats;
    static constexpr int kTotals = Element::kVectors;  // per row, added up last
    static Lanes no_lanes() { return zero(); }

    PackedQuery(const Arguments& a, const QueryRows& rows)
        : rows_(rows), steps_(static_cast<int>((a.head_dim + Element::kStep - 1) / Element::kStep))
    {
        for (int row = 0; row < rows.count(); ++row) {
            const Stored* from = rows.address<Stored>(a, row);
            std::memset(stored_[row], 0, sizeof stored_[row]);
            for (int64_t i = 0; i < a.head_dim; ++i) {
                stored_[row][i] = from[i * a.query.element_stride];
            }
            for (int step = 0; step < steps_; ++step) {
                Floats parts[Element::kVectors];
                Element::load(stored(row, step), parts);
                for (int part = 0; part < Element::kVectors; ++part) {
                    store(values_[row] + (step * Element::kVectors + part) * kLanes, parts[part]);
                }
            }
        }
    }

    int rows() const { return rows_.count(); }
    int heads() const { return rows_.heads; }  // of a token
    int steps() const { return steps_; }
    Floats values(int row, int step, int part) const
    {
        return load(values_[row] + (step * Element::kVectors + part) * kLanes);
    }
    const float* loaded(int row) const { return values_[row]; }
    const Stored* stored(int row, int step) const { return stored_[row] + step * Element::kStep; }

private:
    static constexpr int kLength = kMostHeadDim + Element::kStep;
    alignas(64) float values_[kMostRows][kLength];
    alignas(64) Stored stored_[kMostRows][kLength];
    QueryRows rows_;
    int steps_;
};

// Adds the products of step `step` of one K row with `Count` rows of the query to `totals`.
template <int Count, class Element>
inline void multiply_step(const typename Element::Stored* key, int step, const PackedQuery<Element>& query,
                          int first_row, Floats (&totals)[Count][Element::kVectors])
{
    if constexpr (kMultipliesPairs<Element>) {
        const auto pairs = load_pairs(key + step * Element::kStep);
        for (int row = 0; row < Count; ++row) {
            Floats& total = totals[row][step % 2];
            total = add_products(total, pairs, load_pairs(query.stored(first_row + row, step)));
        }
    } else {
        Floats parts[Element::kVectors];
        Element::load(key + step * Element::kStep, parts);
        for (int row = 0; row < Count; ++row) {
            for (int part = 0; part < Element::kVectors; ++part) {
                Floats& total = totals[row][part];
                total = multiply_add(parts[part], query.values(first_row + row, step, part), total);
            }
        }
    }
}

// K rows of a tile that lie one stride apart, as those behind them do.
template <class Stored>
struct SpacedRows {
    const Stored* first;
    int64_t stride;

    const Stored* operator[](int r) const { return first + r * stride; }
    // Calls rows behind row r to come into the caches.
    void call_in(int r, int length) const
    {
        const Stored* row = (*this)[r];
        const int64_t bytes = length * static_cast<int64_t>(sizeof(Stored));
        prefetch<kFarCache>(row + kBytesToFarCache / bytes * stride, length);
        prefetch<kNearCache>(row + kBytesToNearCache / bytes * stride, length);
    }
};

// Those that lie here and there, and the rows behind them.
template <class Stored>
struct ListedRows {
    const Stored* rows[kLanes];
    const Stored* behind[kLanes];

    const Stored* operator[](int r) const { return rows[r]; }
    void call_in(int r, int length) const { prefetch<kNearCache>(behind[r], length); }
};

// Writes a vector for each of `Count` rows of the query to sums[..][place], whose lanes add up to its product with K
// row r, and calls K rows to come into the caches. `Steps` is 0 where it is not known when this is compiled.
template <int Count, int Steps, class KeyRows, class Query, int Places>
inline void multiply_row(const KeyRows& keys, int r, const Query& query, int first_row,
                         typename Query::Lanes (&sums)[Count][Places], int place)
{
    constexpr int kTotals = Query::kTotals;
    const int steps = Steps != 0 ? Steps : query.steps();
    const auto* key = keys[r];
    if (first_row == 0) {
        keys.call_in(r, steps * Query::Cached::kStep);
    }
    typename Query::Lanes totals[Count][kTotals];
    for (auto& parts : totals) {
        std::fill_n(parts, kTotals, Query::no_lanes());
    }
#pragma GCC unroll 8
    for (int step = 0; step < steps; ++step) {
        multiply_step<Count>(key, step, query, first_row, totals);
    }
    for (int row = 0; row < Count; ++row) {
        sums[row][place] = kTotals == 1 ? totals[row][0] : add(totals[row][0], totals[row][1 % kTotals]);
    }
}

// q·k of kLanes rows of K and `Count` rows of the query. One K row at a time, so that few streams of loads are open and
// the processor's own prefetcher keeps up.
template <int Count, int Steps, class KeyRows, class Query>
void multiply_tile(const KeyRows& keys, const Query& query, int first_row, Floats* products)
{
    using Lanes = typename Query::Lanes;
    if constexpr (kJoinedApart == 0) {
        Lanes sums[Count][kLanes];
        for (int r = 0; r < kLanes; ++r) {
            multiply_row<Count, Steps>(keys, r, query, first_row, sums, r);
        }
        for (int row = 0; row < Count; ++row) {
            products[row] = to_floats(sum_of_each(sums[row]));
        }
    } else {
        constexpr int kApart =
            kJoinedApart == 0 ? 1 : kJoinedApart;  // since a branch that is left out is compiled, too
        Lanes joined[Count][kLanes / 2];
#pragma GCC unroll 1
        for (int pair = 0; pair < kLanes / 2; ++pair) {
            const int r = pair / kApart * kApart + pair;
            Lanes sums[Count][2];
            multiply_row<Count, Steps>(keys, r, query, first_row, sums, 0);
            multiply_row<Count, Steps>(keys, r + kApart, query, first_row, sums, 1);
            for (int row = 0; row < Count; ++row) {
                joined[row][pair] = join(sums[row][0], sums[row][1]);
            }
        }
        for (int row = 0; row < Count; ++row) {
            products[row] = to_floats(sum_of_joined(joined[row]));
        }
    }
}

// The same for all rows of the query, four, two and one at a time.
template <int Steps, class KeyRows, class Query>
void multiply_tile_by_all(const KeyRows& keys, const Query& query, Floats* products)
{
    int row = 0;
    for (; query.rows() - row >= 4; row += 4) {
        multiply_tile<4, Steps>(keys, query, row, products + row);
    }
    if (query.rows() - row >= 2) {
        multiply_tile<2, Steps>(keys, query, row, products + row);
        row += 2;
    }
    if (query.rows() - row >= 1) {
        multiply_tile<1, Steps>(keys, query, row, products + row);
    }
}

// q·k of the first `count` of some keys, at most kLanes; the lanes past them hold 0.
template <class Query>
class TileProducts {
public:
    using Cached = typename Query::Cached;
    using Stored = typename Cached::Stored;

    TileProducts(const Rows<Cached>& keys, const Query& query) : keys_(keys), query_(query) {}

    void compute(const Keys& keys, int count, Floats* products)
    {
        const bool is_tile = count == kLanes && keys_.fits_steps();
        if (is_tile && keys.are_neighbours(kLanes) && keys_.are_evenly_spaced(keys[0], kLanes)) {
            multiply(SpacedRows<Stored>{keys_[keys[0]], keys_.row_stride()}, products);
        } else if (is_tile) {
            ListedRows<Stored> rows;
            for (int r = 0; r < kLanes; ++r) {
                rows.rows[r] = keys_[keys[r]];
                rows.behind[r] = keys.has(r + kKeysAhead) ? keys_[keys[r + kKeysAhead]] : rows.rows[r];
            }
            multiply(rows, products);
        } else {
            copy(keys, count);
            multiply(SpacedRows<Stored>{copied_, query_.steps() * Cached::kStep}, products);
        }
    }

private:
    void copy(const Keys& keys, int count)
    {
        const int length = query_.steps() * Cached::kStep;
        std::memset(copied_, 0, sizeof(Stored) * static_cast<size_t>(length * kLanes));
        for (int r = 0; r < count; ++r) {
            keys_.copy(keys[r], copied_ + r * length);
        }
    }

    template <class KeyRows>
    void multiply(const KeyRows& keys, Floats* products) const
    {
        // the usual sizes of a head have loops of their own
        if (query_.steps() == 128 / Cached::kStep) {
            multiply_tile_by_all<128 / Cached::kStep>(keys, query_, products);
        } else if (query_.steps() == 64 / Cached::kStep) {
            multiply_tile_by_all<64 / Cached::kStep>(keys, query_, products);
        } else {
            multiply_tile_by_all<0>(keys, query_, products);
        }
    }

    const Rows<Cached>& keys_;
    const Query& query_;
    alignas(64) Stored copied_[kLanes * (kMostHeadDim + Cached::kStep)];
};

// The scores of tiles of a cache in the query's type.
template <class Element>
class TileScores {
public:
    TileScores(const Rows<Element>& keys, const PackedQuery<Element>& query, float scale)
        : tile_(keys, query), rows_(query.rows()), scale_(broadcast(scale))
    {}

    // Of the first `count` keys, at most kLanes, for each row; the lanes past them hold anything.
    void compute(const Keys& keys, int count, Floats* scores)
    {
        tile_.compute(keys, count, scores);
        for (int row = 0; row < rows_; ++row) {
            scores[row] = multiply(scores[row], scale_);
        }
    }

private:
    TileProducts<PackedQuery<Element>> tile_;
    int rows_;
    Floats scale_;
};

// Writes the scores of the first `count` keys, [rows][stride], padded with -inf to whole vectors, and their maxima.
template <class Tiles>
void write_scores(Tiles& tiles, int rows, const Keys& keys, int count, float* scores, int64_t stride, float* maxima)
{
    Floats largest_lanes[kMostRows], of_tile[kMostRows];
    std::fill_n(largest_lanes, rows, broadcast(-kInfinity));
    for (int done = 0; done < count; done += kLanes) {
        const int some = std::min(kLanes, count - done);
        tiles.compute(keys.after(done), some, of_tile);
        for (int row = 0; row < rows; ++row) {
            Floats score = of_tile[row];
            if (some < kLanes) {
                score = select(first_lanes(some), score, broadcast(-kInfinity));
            }
            store(scores + row * stride + done, score);
            largest_lanes[row] = larger(score, largest_lanes[row]);
        }
    }
    for (int row = 0; row < rows; ++row) {
        maxima[row] = largest(largest_lanes[row]);
    }
}

}  // namespace toptheta
