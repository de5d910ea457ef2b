// Where the K or V rows of one sequence and head lie, contiguous or in pages, and how they become steps of vectors.
#pragma once

#include <cstdint>
#include <cstring>

#include "arguments.h"
#include "elements.h"

namespace toptheta {

// Keys of a sequence: neighbours from `first` on, or those that are `places` behind it, up to the one before `end`.
struct Keys {
    int64_t first;
    const int64_t* places = nullptr;
    const int64_t* end = nullptr;

    int64_t operator[](int i) const { return first + (places == nullptr ? i : places[i]); }
    Keys after(int count) const { return places == nullptr ? Keys{first + count} : Keys{first, places + count, end}; }
    // Whether number i is known to be one of them.
    bool has(int i) const { return i < end - places; }
    // Whether `count` of them, which are in ascending order, follow each other.
    bool are_neighbours(int count) const
    {
        return places == nullptr || count < 2 || (*this)[count - 1] - (*this)[0] == count - 1;
    }
};

template <class Element>
class Rows {
public:
    using Stored = typename Element::Stored;

    Rows(const Arguments& a, const TensorView& cache, int64_t sequence, int64_t head)
        : row_stride_(cache.row_stride), element_stride_(cache.element_stride), head_dim_(a.head_dim)
    {
        base_ = static_cast<const Stored*>(cache.data) + head * cache.head_stride;
        if (a.block_table == nullptr) {
            base_ += sequence * cache.sequence_stride;
            page_rows_ = a.capacity;
        } else {
            pages_ = a.block_table + sequence * a.blocks_per_sequence;
            page_stride_ = cache.sequence_stride;
            page_rows_ = a.block_size;
        }
        fits_steps_ = element_stride_ == 1 && head_dim_ % Element::kStep == 0;
    }

    const Stored* operator[](int64_t row) const
    {
        if (pages_ == nullptr) {
            return base_ + row * row_stride_;
        }
        return base_ + pages_[row / page_rows_] * page_stride_ + row % page_rows_ * row_stride_;
    }

    int64_t row_stride() const { return row_stride_; }
    int64_t element_stride() const { return element_stride_; }

    // The rows from `row` to the end of its page.
    int64_t side_by_side(int64_t row) const { return page_rows_ - row % page_rows_; }

    // Whether a row can be read in whole steps where it lies.
    bool fits_steps() const { return fits_steps_; }

    // Whether `count` rows lie one stride apart.
    bool are_evenly_spaced(int64_t first, int64_t count) const
    {
        return pages_ == nullptr || first % page_rows_ + count <= page_rows_;
    }

    // Copies a row to whole steps; the elements past its end are left as they are.
    void copy(int64_t row, Stored* to) const
    {
        const Stored* from = (*this)[row];
        if (element_stride_ == 1) {
            std::memcpy(to, from, static_cast<size_t>(head_dim_) * sizeof(Stored));
            return;
        }
        for (int64_t i = 0; i < head_dim_; ++i) {
            to[i] = from[i * element_stride_];
        }
    }

private:
    const Stored* base_;
    const int32_t* pages_ = nullptr;
    int64_t page_stride_ = 0;
    int64_t page_rows_ = 1;
    int64_t row_stride_;
    int64_t element_stride_;
    int64_t head_dim_;
    bool fits_steps_;
};

enum Cache { kFarCache = 2, kNearCache = 3 };  // in the words of __builtin_prefetch

// Asks for the cache lines of a row before they are needed.
template <Cache cache, class Stored>
inline void prefetch(const Stored* row, int64_t elements)
{
    const char* line = reinterpret_cast<const char*>(row);
    const char* end = reinterpret_cast<const char*>(row + elements);
    for (; line < end; line += 64) {
        __builtin_prefetch(line, 0, cache);
    }
}

}  // namespace toptheta
