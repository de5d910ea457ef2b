// A decode step: every granule is scored, selected and summed up by one thread; the last of a KV head combines its
// rows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>

#include "columns.h"
#include "int8_scores.h"
#include "plan.h"
#include "row_result.h"
#include "rows.h"
#include "scales.h"
#include "scores.h"
#include "selection.h"
#include "values.h"
#include "work.h"

namespace toptheta {

// Above this share of keys that some head of the block keeps, all V rows of a granule are read in one sweep. Below, the
// rows that are called into the cache ahead of time come as fast one by one.
constexpr double kDenseAbove = 0.8;

constexpr int kScoreStride = kMostGranuleRows + kLanes;  // not a power of two, which caches would map to one place

// What a thread works in, kept for its next item.
struct Scratch {
    alignas(64) float scores[kMostHeads * kScoreStride];
    uint32_t unions[kMostGranuleRows / kLanes];
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
};

template <class Element>
class Step {
public:
    using Stored = typename Element::Stored;
    static constexpr int kDimStep = Element::kStep > Int8::kStep ? Element::kStep : Int8::kStep;

    explicit Step(const Arguments& arguments)
        : a_(arguments),
          plan_(arguments, arguments.key_scale.are_there() ? sizeof(Int8::Stored) : sizeof(Stored)),
          group_(static_cast<int>(a_.heads / a_.key_value_heads)),
          block_heads_(a_.head_dim <= 256 ? kMostHeads : kMostHeads / 2),
          blocks_((group_ + block_heads_ - 1) / block_heads_),
          padded_dim_((a_.head_dim + kDimStep - 1) / kDimStep * kDimStep),
          parts_(new HeadPart[static_cast<size_t>(plan_.items() * group_)]),
          sums_(new float[static_cast<size_t>(plan_.items() * group_ * padded_dim_)]),
          value_rows_(new int32_t[static_cast<size_t>(plan_.items() * blocks_)]),
          unfinished_(new std::atomic<int64_t>[static_cast<size_t>(a_.batch * a_.key_value_heads)])
    {
        for (int64_t b = 0; b < a_.batch; ++b) {
            for (int64_t h = 0; h < a_.key_value_heads; ++h) {
                unfinished_[b * a_.key_value_heads + h].store(plan_.sequence(b).granules, std::memory_order_relaxed);
            }
        }
    }

    // False: a scale that was read is negative or not finite, so what is written means nothing.
    bool run()
    {
        for (int64_t b = 0; b < a_.batch; ++b) {
            if (plan_.sequence(b).length == 0) {
                write_empty_rows(b);
            }
        }
        if (a_.placement == kPostSoftmax) {
            threshold_of_row_ = std::make_unique<float[]>(static_cast<size_t>(a_.batch * a_.heads));
            if (a_.row_lse == nullptr) {
                stored_scores_.reset(new float[static_cast<size_t>(plan_.items() * group_ * plan_.granule_rows())]);
                run_all([this](int64_t number) { score_item(plan_.item(number)); });
            }
            find_thresholds();
        }
        run_all([this](int64_t number) { attend_item(plan_.item(number)); });
        return !has_bad_scale_.load(std::memory_order_relaxed);
    }

private:
    template <class Function>
    void run_all(const Function& function)
    {
        run_items(plan_.items(), a_.threads, a_.run_in_parallel, function);
    }

    int64_t first_key(const Item& item) const
    {
        return plan_.sequence(item.sequence).start + item.granule * plan_.granule_rows();
    }
    int count_keys_of(const Item& item) const
    {
        const int64_t before = item.granule * plan_.granule_rows();
        return static_cast<int>(std::min<int64_t>(plan_.granule_rows(), plan_.sequence(item.sequence).length - before));
    }
    int heads_of_block(int block) const { return std::min(block_heads_, group_ - block * block_heads_); }
    HeadPart* parts_of(const Item& item) { return parts_.get() + item.number * group_; }
    float* stored_scores_of(const Item& item, int block)
    {
        return stored_scores_.get() + (item.number * group_ + block * block_heads_) * plan_.granule_rows();
    }

    // Post-softmax, where the threshold of a row needs its LSE: first all scores, and the mass of each granule.
    void score_item(const Item& item)
    {
        const int count = count_keys_of(item), padded = (count + kLanes - 1) / kLanes * kLanes;
        for (int block = 0; block < blocks_; ++block) {
            float* scores = stored_scores_of(item, block);
            float maxima[kMostHeads];
            compute_scores(item, block, scores, plan_.granule_rows(), maxima);
            for (int head = 0; head < heads_of_block(block); ++head) {
                HeadPart& part = parts_of(item)[block * block_heads_ + head];
                part = {
                    maxima[head], 0.0F, total_mass(scores + head * plan_.granule_rows(), padded, maxima[head]), 0, 0,
                    false};
            }
        }
    }

    // softmax(a) > theta means a > ln theta + LSE; theta <= 0 is dense.
    void find_thresholds()
    {
        for (int64_t row = 0; row < a_.batch * a_.heads; ++row) {
            const int64_t b = row / a_.heads, head = row % a_.heads, h = head / group_;
            const float theta = a_.threshold[b * a_.threshold_sequence_stride + head];
            double lse = 0.0;
            if (a_.row_lse != nullptr) {
                lse = a_.row_lse[row];
            } else {
                const HeadPart* parts = parts_.get() + plan_.first_item(b, h) * group_ + head % group_;
                const RowMasses masses = combine_masses(parts, plan_.sequence(b).granules, group_);
                lse = log_sum(masses, head);
            }
            threshold_of_row_[row] =
                theta <= 0.0F ? -kInfinity : static_cast<float>(std::log(static_cast<double>(theta)) + lse);
        }
    }

    // The LSE of a whole row with its sink, which a row without any mass has not.
    double log_sum(const RowMasses& masses, int64_t head) const
    {
        const double lse = masses.maximum + std::log(masses.total());
        if (a_.learnable_sink == nullptr || masses.is_empty()) {
            return lse;
        }
        const double sink = a_.learnable_sink[head];
        return std::max(lse, sink) + std::log1p(std::exp(-std::abs(lse - sink)));
    }

    double sink_mass(const RowMasses& masses, int64_t head) const
    {
        return a_.learnable_sink == nullptr ? 0.0
                                            : std::exp(static_cast<double>(a_.learnable_sink[head]) - masses.maximum);
    }

    float threshold(int64_t b, int64_t head) const
    {
        return threshold_of_row_ ? threshold_of_row_[b * a_.heads + head]
                                 : a_.threshold[b * a_.threshold_sequence_stride + head];
    }

    void attend_item(const Item& item)
    {
        Scratch& scratch = Scratch::of_this_thread();
        for (int block = 0; block < blocks_; ++block) {
            float* scores = scratch.scores;
            int64_t stride = kScoreStride;
            float maxima[kMostHeads];
            if (stored_scores_) {
                stride = plan_.granule_rows();
                scores = stored_scores_of(item, block);
                for (int head = 0; head < heads_of_block(block); ++head) {
                    maxima[head] = parts_of(item)[block * block_heads_ + head].maximum;
                }
            } else {
                compute_scores(item, block, scores, stride, maxima);
            }
            select_and_sum(item, block, scores, stride, maxima, scratch);
        }
        const int64_t pair = item.sequence * a_.key_value_heads + item.key_value_head;
        if (unfinished_[pair].fetch_sub(1, std::memory_order_acq_rel) == 1) {
            write_rows(item.sequence, item.key_value_head);
        }
    }

    // The scores of the block's heads, [heads][stride], padded with -inf to whole vectors, and their maxima.
    void compute_scores(const Item& item, int block, float* scores, int64_t stride, float* maxima)
    {
        const int count = count_keys_of(item), heads = heads_of_block(block);
        const int64_t first_head = item.key_value_head * group_ + block * block_heads_;
        if (a_.key_scale.are_there()) {
            Int8Scores<Element> tiles(a_, item.sequence, item.key_value_head, first_head, heads);
            write_scores(tiles, heads, first_key(item), count, scores, stride, maxima);
            note_scales(!tiles.has_bad_scale());
            return;
        }
        const Rows<Element> keys(a_, a_.key, item.sequence, item.key_value_head);
        const PackedQuery<Element> query(a_, item.sequence, first_head, heads);
        if (keys.lie_by_columns()) {
            ColumnScores<Element>(keys, query, static_cast<int>(a_.head_dim), static_cast<float>(a_.scale))
                .compute(first_key(item), count, scores, stride);
            for (int head = 0; head < heads; ++head) {
                maxima[head] = pad_scores(scores + head * stride, count);
            }
            return;
        }
        TileScores<Element> tiles(keys, query, static_cast<float>(a_.scale));
        write_scores(tiles, heads, first_key(item), count, scores, stride, maxima);
    }

    void note_scales(bool are_good)
    {
        if (!are_good) {
            has_bad_scale_.store(true, std::memory_order_relaxed);
        }
    }

    // What the block's heads keep of a granule, and the weighted sum of its V rows.
    void select_and_sum(const Item& item, int block, float* scores, int64_t stride, const float* maxima,
                        Scratch& scratch)
    {
        const int count = count_keys_of(item), words = (count + kLanes - 1) / kLanes, heads = heads_of_block(block);
        const int64_t first_head = item.key_value_head * group_ + block * block_heads_;
        HeadPart* parts = parts_of(item) + block * block_heads_;
        std::fill_n(scratch.unions, words, 0u);
        for (int head = 0; head < heads; ++head) {
            const float least = threshold(item.sequence, first_head + head);
            parts[head] = select_head(scores + head * stride, count, least, maxima[head], scratch.unions);
        }
        for (int head = 0; head < heads; ++head) {
            const int32_t key = parts[head].largest_key;
            parts[head].largest_is_fetched = (scratch.unions[key / kLanes] >> (key % kLanes) & 1) != 0;
        }
        const int in_union = count_keys(scratch.unions, words);
        value_rows_[item.number * blocks_ + block] = in_union;

        float* sums = sums_.get() + (item.number * group_ + block * block_heads_) * padded_dim_;
        std::fill_n(sums, heads * padded_dim_, 0.0F);
        const bool sweeps =
            a_.path == kDense || (a_.path == kAuto && in_union > kDenseAbove * count) || in_union == count;
        const int listed = sweeps ? count : list_keys(scratch.unions, words, scratch.keys);
        const int32_t* keys = sweeps ? scratch.all_keys : scratch.keys;
        if (!a_.value_scale.are_there()) {
            add_values<Element>(item, keys, listed, {scores, stride}, heads, sums);
            return;
        }
        if (a_.value_scale.are_by_row()) {
            const RowScales scales(a_, a_.value_scale, item.sequence, item.key_value_head);
            note_scales(scale_weights(scales, first_key(item), keys, listed, sweeps, heads, scores, stride));
        }
        add_values<Int8>(item, keys, listed, {scores, stride}, heads, sums);
    }

    template <class Value>
    void add_values(const Item& item, const int32_t* keys, int count, const Weights& weights, int heads, float* sums)
    {
        const Rows<Value> rows(a_, a_.value, item.sequence, item.key_value_head);
        WeightedValues<Value>(rows, a_.head_dim, first_key(item)).add(keys, count, weights, heads, sums, padded_dim_);
    }

    void write_rows(int64_t b, int64_t h)
    {
        const Sequence& sequence = plan_.sequence(b);
        const int64_t item = plan_.first_item(b, h);
        int64_t value_rows = 0;
        for (int64_t g = 0; g < sequence.granules * blocks_; ++g) {
            value_rows += value_rows_[item * blocks_ + g];
        }
        for (int block = 0; block < blocks_; ++block) {
            int64_t standing_in[kMostHeads];  // keys of rows that keep nothing else
            int count = 0;
            for (int head = block * block_heads_; head < block * block_heads_ + heads_of_block(block); ++head) {
                const HeadPart* parts = parts_.get() + item * group_ + head;
                const RowMasses masses = combine_masses(parts, sequence.granules, group_);
                if (masses.is_empty()) {
                    write_empty_row(b * a_.heads + h * group_ + head);
                    continue;
                }
                const HeadPart& best = parts[masses.best_granule * group_];
                const int64_t key = sequence.start + masses.best_granule * plan_.granule_rows() + best.largest_key;
                write_row(b, h * group_ + head, masses, key);
                if (masses.kept == 0 && !best.largest_is_fetched &&
                    std::find(standing_in, standing_in + count, key) == standing_in + count) {
                    standing_in[count++] = key;
                }
            }
            value_rows += count;
        }
        if (a_.result == kOutputWithStatistics) {
            a_.value_rows[b * a_.key_value_heads + h] = static_cast<int32_t>(value_rows);
        }
    }

    // The row of a query head; `largest_key` is the key of its largest score, which stands in where it keeps nothing.
    void write_row(int64_t b, int64_t head, RowMasses masses, int64_t largest_key)
    {
        const int64_t row = b * a_.heads + head, length = plan_.sequence(b).length;
        alignas(64) float loaded[kMostHeadDim + kDimStep] = {};
        float out[kMostHeadDim + kDimStep];
        const double lse = log_sum(masses, head);
        const bool stands_in = masses.kept == 0;
        if (stands_in && !masses.has_nan()) {
            a_.value_scale.are_there() ? load_value<Int8>(b, head / group_, largest_key, loaded)
                                       : load_value<Element>(b, head / group_, largest_key, loaded);
        } else {
            sum_granules(b, head, masses, loaded);
        }
        to_values(head / group_, loaded, out);
        if (a_.result == kPartial) {
            write_partial(row, masses, out);
            return;
        }
        if (stands_in) {
            masses.kept = 1;
            masses.discarded_mass = std::max(masses.discarded_mass - 1.0, 0.0);
            masses.kept_mass += 1.0;
        }
        const double estimate = estimate_discarded_mass(a_, row, masses, threshold(b, head), length);
        const float* mean = a_.value_mean;
        mean = mean == nullptr ? nullptr : mean + (b * a_.key_value_heads + head / group_) * a_.head_dim;
        // a NaN among the scores is in one of the masses, whichever of them the mode uses
        const double nothing = 0.0 * masses.total();
        const double denominator = masses.kept_mass + estimate + sink_mass(masses, head) + nothing;
        compensate(out, static_cast<int>(a_.head_dim), denominator, estimate, mean);
        Element::write(static_cast<Stored*>(a_.out) + row * a_.head_dim, out, static_cast<int>(a_.head_dim));
        if (a_.result == kOutputWithStatistics) {
            a_.lse[row] = static_cast<float>(lse);
            a_.kept[row] = static_cast<int32_t>(masses.kept);
        }
    }

    // From the order of loads to that of memory, and per channel to what the numbers of an int8 V stand for.
    void to_values(int64_t h, const float* loaded, float* out) const
    {
        const int head_dim = static_cast<int>(a_.head_dim);
        if (!a_.value_scale.are_there()) {
            in_memory_order<Element>(loaded, head_dim, out);
            return;
        }
        in_memory_order<Int8>(loaded, head_dim, out);
        if (a_.value_scale.are_by_channel()) {
            const float* scales = a_.value_scale.of_head(h);
            std::transform(out, out + head_dim, scales, out, std::multiplies<float>());
        }
    }

    template <class Value>
    void load_value(int64_t b, int64_t h, int64_t key, float* loaded)
    {
        alignas(64) typename Value::Stored copied[kMostHeadDim + Value::kStep] = {};
        Rows<Value>(a_, a_.value, b, h).copy(key, copied);
        Floats scale = broadcast(1.0F);
        if (a_.value_scale.are_by_row()) {
            float lanes[kLanes];
            store(lanes, RowScales(a_, a_.value_scale, b, h).of_neighbours(key, 1));
            scale = broadcast(lanes[0]);
            note_scales(bits(are_bad_scales(scale)) == 0);
        }
        for (int64_t first = 0; first < a_.head_dim; first += Value::kStep) {
            Floats parts[Value::kVectors];
            Value::load(copied + first, parts);
            for (int part = 0; part < Value::kVectors; ++part) {
                store(loaded + first + part * kLanes, multiply(parts[part], scale));
            }
        }
    }

    void sum_granules(int64_t b, int64_t head, const RowMasses& masses, float* loaded)
    {
        const int64_t first = plan_.first_item(b, head / group_) * group_ + head % group_;
        for (int64_t g = 0; g < plan_.sequence(b).granules; ++g) {
            const int64_t part = first + g * group_;
            if (parts_[part].kept == 0) {
                continue;  // its sums are 0
            }
            const Floats factor = broadcast(static_cast<float>(granule_factor(parts_[part].maximum, masses.maximum)));
            for (int64_t i = 0; i < padded_dim_; i += kLanes) {
                const Floats sum = load(sums_.get() + part * padded_dim_ + i);
                store(loaded + i, multiply_add(factor, sum, load(loaded + i)));
            }
        }
    }

    void write_partial(int64_t row, const RowMasses& masses, float* out)
    {
        const double nothing = 0.0 * masses.total();
        compensate(out, static_cast<int>(a_.head_dim), (masses.kept == 0 ? 1.0 : masses.kept_mass) + nothing, 0.0,
                   nullptr);
        std::copy_n(out, a_.head_dim, static_cast<float*>(a_.out) + row * a_.head_dim);
        write_masses(row, masses);
    }

    void write_masses(int64_t row, const RowMasses& masses)
    {
        a_.maximum[row] = masses.maximum;
        a_.kept_mass[row] = static_cast<float>(masses.kept_mass);
        a_.discarded_part[row] = static_cast<float>(masses.discarded_mass);
        a_.kept[row] = static_cast<int32_t>(masses.kept);
    }

    // A row without keys, or with nothing but scores of -inf.
    void write_empty_row(int64_t row)
    {
        const int64_t bytes =
            a_.head_dim * static_cast<int64_t>(a_.result == kPartial ? sizeof(float) : sizeof(Stored));
        std::memset(static_cast<char*>(a_.out) + row * bytes, 0, static_cast<size_t>(bytes));
        if (a_.result == kPartial) {
            write_masses(row, RowMasses());
        } else if (a_.result == kOutputWithStatistics) {
            a_.lse[row] = -kInfinity;
            a_.kept[row] = 0;
        }
    }

    void write_empty_rows(int64_t b)
    {
        for (int64_t row = b * a_.heads; row < (b + 1) * a_.heads; ++row) {
            write_empty_row(row);
        }
        if (a_.result == kOutputWithStatistics) {
            std::fill_n(a_.value_rows + b * a_.key_value_heads, a_.key_value_heads, 0);
        }
    }

    const Arguments& a_;
    Plan plan_;
    int group_;          // query heads per KV head
    int block_heads_;    // query heads that are handled at once
    int blocks_;         // of a group
    int64_t padded_dim_;  // head_dim in whole steps
  // per item
    std::unique_ptr<HeadPart[]> parts_;          // [group]
    std::unique_ptr<float[]> sums_;              // [group][padded_dim], in the order of Element::load
    std::unique_ptr<int32_t[]> value_rows_;      // [blocks]
    std::unique_ptr<float[]> stored_scores_;     // [group][granule_rows], post-softmax only
    std::unique_ptr<float[]> threshold_of_row_;  // [B, Hq] in score units, post-softmax only
  // per sequence and KV head: granules that are not done
    std::unique_ptr<std::atomic<int64_t>[]> unfinished_;
    std::atomic<bool> has_bad_scale_{false};
};

}  // namespace toptheta
