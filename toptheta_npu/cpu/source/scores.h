// The scores of a tile of kLanes keys for the query heads of a block: a = scale q·k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "elements.h"
#include "rows.h"
#include "selection.h"

namespace toptheta {

constexpr int kMostHeads = 8;  // query heads of a block
constexpr int kMostHeadDim = 512;
// How far ahead of the row at hand K is called into the cache near the core, and into the next one.
constexpr int64_t kBytesToNearCache = 2 << 10;
constexpr int64_t kBytesToFarCache = 8 << 10;

template <class Element>
constexpr bool kMultipliesPairs = kHasBfloat16Products && Element::kVectors == 2;

// The query heads of a block, in the order of elements that Element::load gives, and as they are stored.
template <class Element>
class PackedQuery {
public:
    using Stored = typename Element::Stored;
    using Cached = Element;  // what it is multiplied with
    using Lanes = Floats;
    static constexpr int kTotals = Element::kVectors;  // per row, added up last
    static Lanes no_lanes() { return zero(); }

    PackedQuery(const Arguments& a, int64_t sequence, int64_t first_head, int heads)
        : heads_(heads), steps_(static_cast<int>((a.head_dim + Element::kStep - 1) / Element::kStep))
    {
        for (int head = 0; head < heads; ++head) {
            const Stored* from = static_cast<const Stored*>(a.query.data) + sequence * a.query.sequence_stride +
                                 (first_head + head) * a.query.head_stride;
            std::memset(stored_[head], 0, sizeof stored_[head]);
            for (int64_t i = 0; i < a.head_dim; ++i) {
                stored_[head][i] = from[i * a.query.element_stride];
            }
            for (int step = 0; step < steps_; ++step) {
                Floats parts[Element::kVectors];
                Element::load(stored(head, step), parts);
                for (int part = 0; part < Element::kVectors; ++part) {
                    store(values_[head] + (step * Element::kVectors + part) * kLanes, parts[part]);
                }
            }
        }
    }

    int heads() const { return heads_; }
    int steps() const { return steps_; }
    Floats values(int head, int step, int part) const
    {
        return load(values_[head] + (step * Element::kVectors + part) * kLanes);
    }
    const float* loaded(int head) const { return values_[head]; }
    const Stored* stored(int head, int step) const { return stored_[head] + step * Element::kStep; }

private:
    static constexpr int kLength = kMostHeadDim + Element::kStep;
    alignas(64) float values_[kMostHeads][kLength];
    alignas(64) Stored stored_[kMostHeads][kLength];
    int heads_;
    int steps_;
};

// Adds the products of one K row with `Heads` heads to `totals`.
template <int Heads, int Steps, class Element>
inline void multiply_row(const typename Element::Stored* row, const PackedQuery<Element>& query, int first_head,
                         Floats (&totals)[Heads][Element::kVectors])
{
    const int steps = Steps != 0 ? Steps : query.steps();
#pragma GCC unroll 8
    for (int step = 0; step < steps; ++step) {
        if constexpr (kMultipliesPairs<Element>) {
            const auto pairs = load_pairs(row + step * Element::kStep);
            for (int head = 0; head < Heads; ++head) {
                Floats& total = totals[head][step % 2];
                total = add_products(total, pairs, load_pairs(query.stored(first_head + head, step)));
            }
        } else {
            Floats parts[Element::kVectors];
            Element::load(row + step * Element::kStep, parts);
            for (int head = 0; head < Heads; ++head) {
                for (int part = 0; part < Element::kVectors; ++part) {
                    Floats& total = totals[head][part];
                    total = multiply_add(parts[part], query.values(first_head + head, step, part), total);
                }
            }
        }
    }
}

// q·k of kLanes rows and `Heads` heads. One row at a time, so that few streams of loads are open and the processor's
// own prefetcher keeps up. `Steps` is 0 where it is not known when this is compiled.
template <int Heads, int Steps, class Query>
void multiply_tile(const typename Query::Cached::Stored* rows, int64_t stride, const Query& query, int first_head,
                   Floats* products)
{
    using Lanes = typename Query::Lanes;
    constexpr int kTotals = Query::kTotals;
    const int length = (Steps != 0 ? Steps : query.steps()) * Query::Cached::kStep;
    const int64_t row_bytes = length * static_cast<int64_t>(sizeof(*rows));
    Lanes sums[Heads][kLanes];
    for (int r = 0; r < kLanes; ++r) {
        if (first_head == 0) {
            prefetch<kFarCache>(rows + (r + kBytesToFarCache / row_bytes) * stride, length);
            prefetch<kNearCache>(rows + (r + kBytesToNearCache / row_bytes) * stride, length);
        }
        Lanes totals[Heads][kTotals];
        for (auto& parts : totals) {
            std::fill_n(parts, kTotals, Query::no_lanes());
        }
        multiply_row<Heads, Steps>(rows + r * stride, query, first_head, totals);
        for (int head = 0; head < Heads; ++head) {
            sums[head][r] = kTotals == 1 ? totals[head][0] : add(totals[head][0], totals[head][1 % kTotals]);
        }
    }
    for (int head = 0; head < Heads; ++head) {
        products[head] = to_floats(sum_of_each(sums[head]));
    }
}

// The same for all heads of the block, four, two and one at a time.
template <int Steps, class Query>
void multiply_tile_by_all(const typename Query::Cached::Stored* rows, int64_t stride, const Query& query,
                          Floats* products)
{
    int head = 0;
    for (; query.heads() - head >= 4; head += 4) {
        multiply_tile<4, Steps>(rows, stride, query, head, products + head);
    }
    if (query.heads() - head >= 2) {
        multiply_tile<2, Steps>(rows, stride, query, head, products + head);
        head += 2;
    }
    if (query.heads() - head >= 1) {
        multiply_tile<1, Steps>(rows, stride, query, head, products + head);
    }
}

// q·k of keys first to first + count - 1, at most kLanes; the lanes past them hold 0.
template <class Query>
class TileProducts {
public:
    using Cached = typename Query::Cached;
    using Stored = typename Cached::Stored;

    TileProducts(const Rows<Cached>& keys, const Query& query) : keys_(keys), query_(query) {}

    void compute(int64_t first, int count, Floats* products)
    {
        if (count == kLanes && keys_.fits_steps() && keys_.are_evenly_spaced(first, kLanes)) {
            multiply(keys_[first], keys_.row_stride(), products);
            return;
        }
        const int length = query_.steps() * Cached::kStep;
        std::memset(copied_, 0, sizeof(Stored) * static_cast<size_t>(length * kLanes));
        for (int r = 0; r < count; ++r) {
            keys_.copy(first + r, copied_ + r * length);
        }
        multiply(copied_, length, products);
    }

private:
    void multiply(const Stored* rows, int64_t stride, Floats* products) const
    {
        // the usual sizes of a head have loops of their own
        if (query_.steps() == 128 / Cached::kStep) {
            multiply_tile_by_all<128 / Cached::kStep>(rows, stride, query_, products);
        } else if (query_.steps() == 64 / Cached::kStep) {
            multiply_tile_by_all<64 / Cached::kStep>(rows, stride, query_, products);
        } else {
            multiply_tile_by_all<0>(rows, stride, query_, products);
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
        : tile_(keys, query), heads_(query.heads()), scale_(broadcast(scale))
    {}

    // Of keys first to first + count - 1, at most kLanes, for each head; the lanes past them hold anything.
    void compute(int64_t first, int count, Floats* scores)
    {
        tile_.compute(first, count, scores);
        for (int head = 0; head < heads_; ++head) {
            scores[head] = multiply(scores[head], scale_);
        }
    }

private:
    TileProducts<PackedQuery<Element>> tile_;
    int heads_;
    Floats scale_;
};

// Writes the scores of keys first to first + count - 1, [heads][stride], padded with -inf to whole vectors, and their
// maxima.
template <class Tiles>
void write_scores(Tiles& tiles, int heads, int64_t first, int count, float* scores, int64_t stride, float* maxima)
{
    Floats largest_lanes[kMostHeads], of_tile[2 * kMostHeads];
    std::fill_n(largest_lanes, heads, broadcast(-kInfinity));
    for (int done = 0; done < count; done += kLanes) {
        const int some = std::min(kLanes, count - done);
        tiles.compute(first + done, some, of_tile);
        for (int head = 0; head < heads; ++head) {
            Floats score = of_tile[head];
            if (some < kLanes) {
                score = select(first_lanes(some), score, broadcast(-kInfinity));
            }
            store(scores + head * stride + done, score);
            largest_lanes[head] = larger(score, largest_lanes[head]);
        }
    }
    for (int head = 0; head < heads; ++head) {
        maxima[head] = largest(largest_lanes[head]);
    }
}

}  // namespace toptheta
