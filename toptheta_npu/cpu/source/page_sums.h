// Cumulative sums of V rows in the pages of a cache: what a step adds to them, and the means of sequences that decode.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arguments.h"
#include "elements.h"
#include "rows.h"
#include "work.h"

namespace toptheta {

// The cache of a layer and its sums, packed by ../page_sums.py in this order. A page has block_size / rows pieces.
struct PageSumsOfLayer {
    int64_t blocks;
    int64_t block_size;
    int64_t rows;  // of a piece
    int64_t heads;
    int64_t head_dim;
    TensorView value;  // whose elements lie side by side
    float* sums;       // [blocks * pieces of a page (and more), Hkv, D]
};

// What a step has written into the caches of all layers.
struct WrittenRows {
    int64_t batch;
    int64_t blocks_per_sequence;
    int64_t table_stride;
    const int32_t* block_table;  // [B, blocks_per_sequence]
    Integers lengths;            // with the new tokens
    Integers starts;             // [B+1], of the sequences' new tokens; or null: each has one
    int64_t means;               // 1: of the sequences with one new token; 0: none
    int64_t threads;
    RunInParallel run_in_parallel;

    int64_t new_tokens(int64_t sequence) const
    {
        return starts.data == nullptr ? 1 : starts[sequence + 1] - starts[sequence];
    }
};

template <class Element>
class PageSums {
public:
    PageSums(const PageSumsOfLayer& layer, const WrittenRows& written)
        : layer_(layer), written_(written), pieces_(layer.block_size / layer.rows)
    {}

    // Sees to it that all that will be read and written lies in the cache. False: it does not.
    bool prepare()
    {
        const int64_t capacity = written_.blocks_per_sequence * layer_.block_size;
        for (int64_t b = 0; b < written_.batch; ++b) {
            const int64_t length = written_.lengths[b], count = written_.new_tokens(b);
            if (length < 0 || length > capacity || count < 0) {
                return false;
            }
            const int64_t first = std::max<int64_t>(length - count, 0) / layer_.rows, end = length / layer_.rows;
            const bool decodes = count == 1 && written_.means != 0;
            if (end > first) {
                ended_.push_back({b, first, end});
                elements_ += (end - first) * layer_.rows;
            }
            if (decodes) {
                means_.push_back({b, end, length});
                elements_ += length % layer_.rows;
            }
            if ((end > first || decodes) && !are_pages_good(b, first - 1, length)) {
                return false;
            }
        }
        elements_ *= layer_.heads * layer_.head_dim;
        // a sequence may go on where another, whose first pages it shares, ends in this step
        std::sort(ended_.begin(), ended_.end(), [](const Ended& a, const Ended& b) { return a.first < b.first; });
        return true;
    }

    // Makes the sums of the pieces that are full now; then writes the means of the sequences with one new token.
    void run(float* mean) const
    {
        const int64_t threads = elements_ < kFewElements ? 1 : written_.threads;
        run_items(layer_.heads, threads, written_.run_in_parallel, [this, mean](int64_t head) {
            std::vector<float> total(static_cast<size_t>(layer_.head_dim));
            for (const Ended& ended : ended_) {
                for (int64_t piece = ended.first; piece < ended.end; ++piece) {
                    sum_up(ended.sequence, piece, layer_.rows, head, total.data());
                    std::copy(total.begin(), total.end(), sums_of(ended.sequence, piece, head));
                }
            }
            float* to = mean + head * layer_.head_dim;
            for (size_t number = 0; number < means_.size(); ++number) {
                if (number + 1 < means_.size()) {
                    call_in(means_[number + 1], head);
                }
                const Mean& each = means_[number];
                sum_up(each.sequence, each.full, each.length % layer_.rows, head, total.data());
                const float count = static_cast<float>(std::max<int64_t>(each.length, 1));
                std::transform(total.begin(), total.end(), to, [count](float sum) { return sum / count; });
                to += layer_.heads * layer_.head_dim;
            }
        });
    }

private:
    using Stored = typename Element::Stored;
    static constexpr int64_t kFewElements = 1 << 16;  // which one thread reads sooner than others wake up
    static constexpr int kVectors = 4;

    struct Ended {
        int64_t sequence, first, end;  // the pieces from `first` to before `end`
    };
    struct Mean {
        int64_t sequence, full, length;  // the number of full pieces, and of rows
    };

    bool are_pages_good(int64_t sequence, int64_t first_piece, int64_t length) const
    {
        const int64_t first = std::max<int64_t>(first_piece, 0) / pieces_;
        for (int64_t page = first; page * layer_.block_size < length; ++page) {
            const int32_t block = written_.block_table[sequence * written_.table_stride + page];
            if (block < 0 || block >= layer_.blocks) {
                return false;
            }
        }
        return true;
    }

    int64_t block_of(int64_t sequence, int64_t piece) const
    {
        return written_.block_table[sequence * written_.table_stride + piece / pieces_];
    }

    float* sums_of(int64_t sequence, int64_t piece, int64_t head) const
    {
        const int64_t place = block_of(sequence, piece) * pieces_ + piece % pieces_;
        return layer_.sums + (place * layer_.heads + head) * layer_.head_dim;
    }

    const Stored* first_row(int64_t sequence, int64_t piece, int64_t head) const
    {
        const TensorView& value = layer_.value;
        return static_cast<const Stored*>(value.data) + head * value.head_stride +
               block_of(sequence, piece) * value.sequence_stride + piece % pieces_ * layer_.rows * value.row_stride;
    }

    // Asks for what a mean reads: it lies at another place for each sequence, where no processor looks ahead.
    void call_in(const Mean& next, int64_t head) const
    {
        if (next.full > 0) {
            prefetch<kNearCache>(sums_of(next.sequence, next.full - 1, head), layer_.head_dim);
        }
        const int64_t rows = next.length % layer_.rows;
        const Stored* row = rows > 0 ? first_row(next.sequence, next.full, head) : nullptr;
        for (int64_t done = 0; done < rows; ++done, row += layer_.value.row_stride) {
            prefetch<kNearCache>(row, layer_.head_dim);
        }
    }

    // total = the sum of all rows before the piece + the sum of its first `rows` rows
    void sum_up(int64_t sequence, int64_t piece, int64_t rows, int64_t head, float* total) const
    {
        std::fill(total, total + layer_.head_dim, 0.0F);
        if (rows > 0) {
            add_rows(first_row(sequence, piece, head), rows, total);
        }
        if (piece > 0) {
            const float* before = sums_of(sequence, piece - 1, head);
            std::transform(total, total + layer_.head_dim, before, total, [](float a, float b) { return b + a; });
        }
    }

    void add_rows(const Stored* first, int64_t rows, float* total) const
    {
        int64_t done = 0;
        for (; done + kVectors * kLanes <= layer_.head_dim; done += kVectors * kLanes) {
            add_columns<kVectors>(first + done, rows, total + done);
        }
        for (; done + kLanes <= layer_.head_dim; done += kLanes) {
            add_columns<1>(first + done, rows, total + done);
        }
        const int rest = static_cast<int>(layer_.head_dim - done);
        for (int64_t row = 0; rest > 0 && row < rows; ++row) {
            Stored padded[kLanes] = {};
            float values[kLanes];
            std::copy_n(first + row * layer_.value.row_stride + done, rest, padded);
            store(values, Element::load_in_order(padded));
            std::transform(values, values + rest, total + done, total + done, [](float a, float b) { return b + a; });
        }
    }

    template <int Vectors>
    void add_columns(const Stored* from, int64_t rows, float* total) const
    {
        Floats sums[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            sums[v] = zero();
        }
        for (int64_t row = 0; row < rows; ++row, from += layer_.value.row_stride) {
            for (int v = 0; v < Vectors; ++v) {
                sums[v] = add(sums[v], Element::load_in_order(from + v * kLanes));
            }
        }
        for (int v = 0; v < Vectors; ++v) {
            store(total + v * kLanes, sums[v]);
        }
    }

    const PageSumsOfLayer& layer_;
    const WrittenRows& written_;
    int64_t pieces_;
    int64_t elements_ = 0;  // that will be read
    std::vector<Ended> ended_;
    std::vector<Mean> means_;
};

}  // namespace toptheta
