// Where the parts of a decode step lie: its blocks of rows, and what each granule finds of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "plan.h"
#include "query_tokens.h"
#include "selection.h"
#include "two_passes.h"

namespace toptheta {

constexpr int kScoreStride = kMostGranuleRows + kLanes;  // not a power of two, which caches would map to one place

// What a thread works in, kept for its next item.
struct Scratch {
    uint32_t unions[kMostGranuleRows / kLanes];
    uint32_t kept[kMostBlockRows * (kMostGranuleRows / kLanes)];
    int32_t keys[kMostGranuleRows];
    int32_t all_keys[kMostGranuleRows];

    Scratch()
    {
        for (int key = 0; key < kMostGranuleRows; ++key) {
            all_keys[key] = key;
        }
    }

    static Scratch& of_this_thread()
    {
        thread_local std::unique_ptr<Scratch> scratch;
        if (scratch == nullptr) {
            scratch = std::make_unique<Scratch>();
        }
        return *scratch;
    }

    // Room for the scores of so many rows of a block, kScoreStride apart.
    float* scores_of(int rows)
    {
        if (rows > rows_) {
            scores_.reset(new Line[static_cast<size_t>(rows) * kScoreStride * sizeof(float) / sizeof(Line) + 1]);
            rows_ = rows;
        }
        return scores_[0].floats;
    }

private:
    struct alignas(64) Line {
        float floats[64 / sizeof(float)];
    };
    std::unique_ptr<Line[]> scores_;
    int rows_ = 0;
};

// Query heads of a KV head and their tokens: the rows that share each V row. They are numbered as `QueryRows`.
struct Block {
    int number;
    int64_t before;  // rows of the KV head's blocks that come before
    QueryRows rows;
};

// What all parts of a step share. An item is a granule of a KV head, and has all rows of its group.
struct StepParts {
    StepParts(const Arguments& arguments, size_t key_bytes, int dim_step)
        : a(arguments),
          plan(arguments, key_bytes),
          group(static_cast<int>(a.heads / a.key_value_heads)),
          block_heads(a.head_dim <= 256 ? kMostHeads : kMostHeads / 2),
          blocks((group + block_heads - 1) / block_heads),
          item_rows(group * a.tokens),
          padded_dim((a.head_dim + dim_step - 1) / dim_step * dim_step),
          parts(new HeadPart[static_cast<size_t>(plan.items() * item_rows)]),
          sums(new float[static_cast<size_t>(plan.items() * item_rows * padded_dim)]),
          value_rows(new int32_t[static_cast<size_t>(plan.items() * blocks)])
    {}

    // Makes room for the scores of a step that goes through them twice.
    void keep_scores()
    {
        passes = std::make_unique<TwoPasses>(plan, a.batch, a.key_value_heads, a.threads);
        for (int64_t b = 0; b < a.batch; ++b) {
            place_size = std::max(place_size, plan.sequence(b).granules * item_rows * kept_score_stride());
        }
        kept_scores.reset(new float[static_cast<size_t>(passes->places() * place_size)]);
    }

    int64_t first_key(const Item& item) const
    {
        return plan.sequence(item.sequence).start + item.granule * plan.granule_rows();
    }
    int count_keys_of(const Item& item) const
    {
        const int64_t before = item.granule * plan.granule_rows();
        return static_cast<int>(std::min<int64_t>(plan.granule_rows(), plan.sequence(item.sequence).length - before));
    }
    Block block(int64_t b, int64_t h, int number) const
    {
        const Sequence& sequence = plan.sequence(b);
        const int before = number * block_heads, heads = std::min(block_heads, group - before);
        const int tokens = sequence.end_token - sequence.first_token;
        return {number, before * a.tokens, {b, h * group + before, heads, sequence.first_token, tokens}};
    }
    Block block(const Item& item, int number) const { return block(item.sequence, item.key_value_head, number); }
    int64_t row_number(int64_t b, int64_t head, int64_t token) const { return (b * a.heads + head) * a.tokens + token; }
    int64_t row_number(const QueryRows& rows, int row) const
    {
        return row_number(rows.sequence, rows.head(row), rows.token(row));
    }
    HeadPart* parts_of(int64_t item, const Block& block) const { return parts.get() + item * item_rows + block.before; }
    float* sums_of(int64_t item, const Block& block) const
    {
        return sums.get() + (item * item_rows + block.before) * padded_dim;
    }
    int64_t pair_of(const Item& item) const { return item.sequence * a.key_value_heads + item.key_value_head; }
    int64_t kept_score_stride() const { return plan.granule_rows() + kLanes; }  // as kScoreStride
    float* kept_scores_of(const Item& item, const Block& block) const
    {
        const int64_t row = item.granule * item_rows + block.before;
        return kept_scores.get() + passes->place(pair_of(item)) * place_size + row * kept_score_stride();
    }

    // Where the output of a row begins.
    int64_t out_at(int64_t b, int64_t head, int64_t token) const
    {
        const int64_t row =
            a.is_out_by_token != 0 ? (b * a.tokens + token) * a.heads + head : row_number(b, head, token);
        return row * a.head_dim;
    }

    void note_scales(bool are_good)
    {
        if (!are_good) {
            has_bad_scale.store(true, std::memory_order_relaxed);
        }
    }

    const Arguments& a;
    Plan plan;
    int group;          // query heads per KV head
    int block_heads;    // query heads that are handled at once
    int blocks;         // of a group
    int64_t item_rows;  // of a group, those behind the real tokens too
    int64_t padded_dim;  // head_dim in whole steps
    // per item
    std::unique_ptr<HeadPart[]> parts;      // [item_rows]
    std::unique_ptr<float[]> sums;          // [item_rows][padded_dim], in the order of Element::load
    std::unique_ptr<int32_t[]> value_rows;  // [blocks]
    // where scores are kept until thresholds are known
    std::unique_ptr<TwoPasses> passes;
    std::unique_ptr<float[]> kept_scores;  // [places][granules][item_rows][granule_rows], scores or weights
    int64_t place_size = 0;
    std::atomic<bool> has_bad_scale{false};
};

}  // namespace toptheta
