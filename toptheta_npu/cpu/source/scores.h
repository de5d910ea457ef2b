// The scores of a tile of kLanes keys for the query heads of a block: a = scale q·k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "elements.h"
#include "rows.h"

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
template <class Element, int Heads, int Steps>
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
template <class Element, int Heads, int Steps>
void multiply_tile(const typename Element::Stored* rows, int64_t stride, const PackedQuery<Element>& query,
                   int first_head, Floats* products)
{
    const int length = (Steps != 0 ? Steps : query.steps()) * Element::kStep;
    const int64_t row_bytes = length * static_cast<int64_t>(sizeof(*rows));
    Floats sums[Heads][kLanes];
    for (int r = 0; r < kLanes; ++r) {
        if (first_head == 0) {
            prefetch<kFarCache>(rows + (r + kBytesToFarCache / row_bytes) * stride, length);
            prefetch<kNearCache>(rows + (r + kBytesToNearCache / row_bytes) * stride, length);
        }
        Floats totals[Heads][Element::kVectors];
        for (auto& parts : totals) {
            std::fill_n(parts, Element::kVectors, zero());
        }
        multiply_row<Element, Heads, Steps>(rows + r * stride, query, first_head, totals);
        for (int head = 0; head < Heads; ++head) {
            sums[head][r] =
                Element::kVectors == 1 ? totals[head][0] : add(totals[head][0], totals[head][1 % Element::kVectors]);
        }
    }
    for (int head = 0; head < Heads; ++head) {
        products[head] = sum_of_each(sums[head]);
    }
}

// The same for all heads of the block, four, two and one at a time.
template <class Element, int Steps>
void multiply_tile_by_all(const typename Element::Stored* rows, int64_t stride, const PackedQuery<Element>& query,
                          Floats* products)
{
    int head = 0;
    for (; query.heads() - head >= 4; head += 4) {
        multiply_tile<Element, 4, Steps>(rows, stride, query, head, products + head);
    }
    if (query.heads() - head >= 2) {
        multiply_tile<Element, 2, Steps>(rows, stride, query, head, products + head);
        head += 2;
    }
    if (query.heads() - head >= 1) {
        multiply_tile<Element, 1, Steps>(rows, stride, query, head, products + head);
    }
}

// q·k of keys first to first + count - 1, at most kLanes; the lanes past them hold 0.
template <class Element>
class TileProducts {
public:
    using Stored = typename Element::Stored;

    TileProducts(const Rows<Element>& keys, const PackedQuery<Element>& query) : keys_(keys), query_(query) {}

    void compute(int64_t first, int count, Floats* products)
    {
        if (count == kLanes && keys_.fits_steps() && keys_.are_evenly_spaced(first, kLanes)) {
            multiply(keys_[first], keys_.row_stride(), products);
            return;
        }
        const int length = query_.steps() * Element::kStep;
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
        if (query_.steps() == 128 / Element::kStep) {
            multiply_tile_by_all<Element, 128 / Element::kStep>(rows, stride, query_, products);
        } else if (query_.steps() == 64 / Element::kStep) {
            multiply_tile_by_all<Element, 64 / Element::kStep>(rows, stride, query_, products);
        } else {
            multiply_tile_by_all<Element, 0>(rows, stride, query_, products);
        }
    }

    const Rows<Element>& keys_;
    const PackedQuery<Element>& query_;
    alignas(64) Stored copied_[kLanes * (kMostHeadDim + Element::kStep)];
};

}  // namespace toptheta
