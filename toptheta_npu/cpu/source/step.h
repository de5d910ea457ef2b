// A decode step: every granule is scored, selected and summed up by one thread; the last of a KV head combines its
// rows, which are its query heads of all tokens.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>

#include "gates.h"
#include "plan.h"
#include "query_tokens.h"
#include "row_result.h"
#include "row_scores.h"
#include "rows.h"
#include "sample.h"
#include "scales.h"
#include "scores.h"
#include "selection.h"
#include "two_passes.h"
#include "values.h"
#include "work.h"

namespace toptheta {

// Above this share of keys that some row of the block keeps, all V rows of a granule are read in one sweep. Below, the
// rows that are called into the cache ahead of time come as fast one by one.
constexpr double kDenseAbove = 0.8;

// Below this share of the weights of several tokens that are not 0, a V row is added up only for the rows that keep it.
constexpr double kKeptBelow = 0.5;
constexpr int kFewRows = 4;  // of weights, for which the reads count and not the work

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
          item_rows_(group_ * a_.tokens),
          padded_dim_((a_.head_dim + kDimStep - 1) / kDimStep * kDimStep),
          parts_(new HeadPart[static_cast<size_t>(plan_.items() * item_rows_)]),
          sums_(new float[static_cast<size_t>(plan_.items() * item_rows_ * padded_dim_)]),
          value_rows_(new int32_t[static_cast<size_t>(plan_.items() * blocks_)]),
          unfinished_(new std::atomic<int64_t>[static_cast<size_t>(a_.batch * a_.key_value_heads)])
    {
        int64_t most_keys = 0;
        for (int64_t b = 0; b < a_.batch; ++b) {
            most_keys = std::max(most_keys, plan_.sequence(b).length);
            for (int64_t h = 0; h < a_.key_value_heads; ++h) {
                unfinished_[b * a_.key_value_heads + h].store(plan_.sequence(b).granules, std::memory_order_relaxed);
            }
        }
        // keys by columns that are far apart take as long to read as all of them
        samples_ahead_ = a_.placement == kSampledSoftmax && most_keys > kMostKeptKeys && !a_.key.lies_by_columns();
    }

    // False: a scale that was read is negative or not finite, so what is written means nothing.
    bool run()
    {
        for (int64_t b = 0; b < a_.batch; ++b) {
            if (plan_.sequence(b).length == 0) {
                write_empty_rows(b);
            }
        }
        const int64_t pairs = a_.batch * a_.key_value_heads;
        if (a_.placement != kPreSoftmax) {
            threshold_of_row_ = std::make_unique<float[]>(static_cast<size_t>(a_.batch * a_.heads * a_.tokens));
            gates_ = std::make_unique<Gates>(pairs);
        }
        if (samples_ahead_) {
            run_behind_gates(plan_.items(), [this](int64_t number) { attend_item(plan_.item(number)); });
        } else if (a_.placement != kPreSoftmax && a_.row_lse == nullptr) {
            run_two_passes();
        } else {
            for (int64_t pair = 0; threshold_of_row_ && pair < pairs; ++pair) {
                find_thresholds(pair);
            }
            run_all(plan_.items(), [this](int64_t number) { attend_item(plan_.item(number)); });
        }
        return !has_bad_scale_.load(std::memory_order_relaxed);
    }

private:
    template <class Function>
    void run_all(int64_t items, const Function& function)
    {
        run_items(items, a_.threads, a_.run_in_parallel, function);
    }

    // Where the threshold of a row needs scores of all its granules: all of a KV head come first.
    void run_two_passes()
    {
        passes_ = std::make_unique<TwoPasses>(plan_, a_.batch, a_.key_value_heads, a_.threads);
        for (int64_t b = 0; b < a_.batch; ++b) {
            place_size_ = std::max(place_size_, plan_.sequence(b).granules * item_rows_ * kept_score_stride());
        }
        kept_scores_.reset(new float[static_cast<size_t>(passes_->places() * place_size_)]);
        run_behind_gates(passes_->turns(), [this](int64_t number) {
            const TwoPasses::Turn turn = passes_->turn(number);
            turn.is_second ? attend_scored_item(turn) : score_item(turn);
        });
    }

    template <class Function>
    void run_behind_gates(int64_t items, const Function& function)
    {
        run_all(items, [&](int64_t number) {
            try {
                function(number);
            } catch (...) {
                gates_->give_up();
                throw;
            }
        });
    }

    void attend_scored_item(const TwoPasses::Turn& turn)
    {
        if (gates_->wait_for(turn.pair)) {
            attend_item(plan_.item(turn.item));
            passes_->end_second(turn.pair);
        }
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
    Block block(int64_t b, int64_t h, int number) const
    {
        const Sequence& sequence = plan_.sequence(b);
        const int before = number * block_heads_, heads = std::min(block_heads_, group_ - before);
        const int tokens = sequence.end_token - sequence.first_token;
        return {number, before * a_.tokens, {b, h * group_ + before, heads, sequence.first_token, tokens}};
    }
    Block block(const Item& item, int number) const { return block(item.sequence, item.key_value_head, number); }
    int64_t row_number(int64_t b, int64_t head, int64_t token) const
    {
        return (b * a_.heads + head) * a_.tokens + token;
    }
    int64_t row_number(const QueryRows& rows, int row) const
    {
        return row_number(rows.sequence, rows.head(row), rows.token(row));
    }
    HeadPart* parts_of(int64_t item, const Block& block) { return parts_.get() + item * item_rows_ + block.before; }
    float* sums_of(int64_t item, const Block& block)
    {
        return sums_.get() + (item * item_rows_ + block.before) * padded_dim_;
    }
    int64_t pair_of(const Item& item) const { return item.sequence * a_.key_value_heads + item.key_value_head; }
    int64_t kept_score_stride() const { return plan_.granule_rows() + kLanes; }  // as kScoreStride
    float* kept_scores_of(const Item& item, const Block& block)
    {
        const int64_t row = item.granule * item_rows_ + block.before;
        return kept_scores_.get() + passes_->place(pair_of(item)) * place_size_ + row * kept_score_stride();
    }

    // A row that drops by probability keeps weights between the passes, so that no exponential is computed twice. Below
    // this θ a weight may be rounded to 0 where its score is above the threshold.
    bool keeps_weights(const QueryRows& rows, int row) const
    {
        return a_.placement == kPostSoftmax && given_threshold(rows, row) > 1e-30F;
    }

    void score_item(const TwoPasses::Turn& turn)
    {
        if (!gates_->wait_until([&] { return passes_->is_place_free(turn.pair); })) {
            return;
        }
        const Item item = plan_.item(turn.item);
        const int count = count_keys_of(item), padded = (count + kLanes - 1) / kLanes * kLanes;
        for (int number = 0; number < blocks_; ++number) {
            const Block block = this->block(item, number);
            float* scores = kept_scores_of(item, block);
            float maxima[kMostBlockRows];
            compute_scores(item, block, scores, kept_score_stride(), maxima);
            for (int row = 0; row < block.rows.count(); ++row) {
                float* of_row = scores + row * kept_score_stride();
                const int32_t largest = first_largest(of_row, padded, maxima[row]);
                const float mass = a_.placement == kSampledSoftmax
                                       ? 0.0F
                                       : weigh_head(of_row, padded, maxima[row], keeps_weights(block.rows, row));
                parts_of(item.number, block)[row] = {maxima[row], 0.0F, mass, 0, largest, false};
            }
        }
        if (passes_->end_first(turn.pair)) {
            find_thresholds(turn.pair);
            gates_->open(turn.pair);
        }
    }

    // softmax(a) > theta means a > ln theta + LSE; theta <= 0 is dense.
    void find_thresholds(int64_t pair)
    {
        const int64_t b = pair / a_.key_value_heads, h = pair % a_.key_value_heads;
        for (int number = 0; number < blocks_; ++number) {
            const Block block = this->block(b, h, number);
            if (a_.placement == kSampledSoftmax) {
                find_sampled_thresholds(block, plan_.item(plan_.first_item(b, h)));
                continue;
            }
            for (int row = 0; row < block.rows.count(); ++row) {
                find_threshold(block, row, plan_.first_item(b, h));
            }
        }
    }

    void find_threshold(const Block& block, int row, int64_t item)
    {
        if (a_.row_lse != nullptr) {
            set_threshold(block.rows, row, a_.row_lse[row_number(block.rows, row)]);
            return;
        }
        const int64_t granules = plan_.sequence(block.rows.sequence).granules;
        const RowMasses masses = combine_masses(parts_of(item, block) + row, granules, item_rows_);
        set_threshold(block.rows, row, log_sum(masses, block.rows.head(row)));
    }

    void set_threshold(const QueryRows& rows, int row, double lse)
    {
        const float theta = given_threshold(rows, row);
        threshold_of_row_[row_number(rows, row)] =
            theta <= 0.0F ? -kInfinity : static_cast<float>(std::log(static_cast<double>(theta)) + lse);
    }

    // Scores the samples of a KV head's rows, of which each token has its own, and finds their thresholds.
    void sample_ahead(const Item& item, Scratch& scratch)
    {
        for (int number = 0; number < blocks_; ++number) {
            QueryRows rows = block(item, number).rows;
            float* scores = scratch.scores_of(rows.heads);
            const int end = rows.first_token + rows.tokens;
            for (rows.tokens = 1; rows.first_token < end; ++rows.first_token) {
                const Sample sample(keys_of_token(a_, item.sequence, rows.first_token));
                const Keys keys = sample.keys(plan_.sequence(item.sequence).start);
                float maxima[kMostHeads];
                note_scales(compute_row_scores<Element>(a_, rows, item.key_value_head, keys, sample.count(), scores,
                                                        kScoreStride, maxima));
                for (int row = 0; row < rows.heads; ++row) {
                    set_threshold(rows, row, log_sum(sample.masses(scores + row * kScoreStride), rows.head(row)));
                }
            }
        }
    }

    // The same from the kept scores of all keys, which begin with those of `first`.
    void find_sampled_thresholds(const Block& block, const Item& first)
    {
        const QueryRows& rows = block.rows;
        const float* scores = kept_scores_of(first, block);
        const int64_t stride = kept_score_stride(), granule_stride = item_rows_ * stride;
        int64_t offsets[kSampledKeys];
        float sampled[kSampledKeys];
        for (int token = 0; token < rows.count(); token += rows.heads) {
            const Sample sample(keys_of_token(a_, rows.sequence, rows.token(token)));
            sample.find(plan_.granule_rows(), granule_stride, offsets);
            for (int row = token; row < token + rows.heads; ++row) {
                const float* of_row = scores + row * stride;
                std::transform(offsets, offsets + sample.count(), sampled, [&](int64_t at) { return of_row[at]; });
                set_threshold(rows, row, log_sum(sample.masses(sampled), rows.head(row)));
            }
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

    float given_threshold(const QueryRows& rows, int row) const
    {
        const int64_t token = a_.threshold_tokens == 1 ? 0 : rows.token(row);
        return a_
            .threshold[rows.sequence * a_.threshold_sequence_stride + rows.head(row) * a_.threshold_tokens + token];
    }

    float threshold(const QueryRows& rows, int row) const
    {
        return threshold_of_row_ ? threshold_of_row_[row_number(rows, row)] : given_threshold(rows, row);
    }

    void attend_item(const Item& item)
    {
        Scratch& scratch = Scratch::of_this_thread();
        if (samples_ahead_ && item.granule == 0) {
            sample_ahead(item, scratch);
            gates_->open(pair_of(item));
        }
        for (int number = 0; number < blocks_; ++number) {
            const Block block = this->block(item, number);
            if (passes_) {
                select_and_sum(item, block, kept_scores_of(item, block), kept_score_stride(), scratch);
                continue;
            }
            float* scores = scratch.scores_of(block.rows.count());
            float maxima[kMostBlockRows];
            compute_scores(item, block, scores, kScoreStride, maxima);
            if (samples_ahead_ && !gates_->wait_for(pair_of(item))) {
                return;
            }
            const int count = count_keys_of(item), padded = (count + kLanes - 1) / kLanes * kLanes;
            for (int row = 0; row < block.rows.count(); ++row) {
                const bool keeps = maxima[row] > threshold(block.rows, row);
                const int32_t largest = keeps ? 0 : first_largest(scores + row * kScoreStride, padded, maxima[row]);
                parts_of(item.number, block)[row] = {maxima[row], 0.0F, 0.0F, 0, largest, false};
            }
            select_and_sum(item, block, scores, kScoreStride, scratch);
        }
        if (unfinished_[pair_of(item)].fetch_sub(1, std::memory_order_acq_rel) == 1) {
            write_rows(item.sequence, item.key_value_head);
        }
    }

    // The scores of the block's rows, [rows][stride], padded with -inf to whole vectors, and their maxima.
    void compute_scores(const Item& item, const Block& block, float* scores, int64_t stride, float* maxima)
    {
        const int at_once = kMostRows / block.rows.heads;
        for (int token = 0; token < block.rows.tokens; token += at_once) {
            QueryRows rows = block.rows;
            rows.first_token += token;
            rows.tokens = std::min(at_once, block.rows.tokens - token);
            const int row = token * rows.heads;
            note_scales(compute_row_scores<Element>(a_, rows, item.key_value_head, {first_key(item)},
                                                    count_keys_of(item), scores + row * stride, stride, maxima + row));
            hide_later_keys(item, rows, scores + row * stride, stride, maxima + row);
        }
    }

    // A token does not see the keys of the tokens behind it.
    void hide_later_keys(const Item& item, const QueryRows& rows, float* scores, int64_t stride, float* maxima)
    {
        const int count = count_keys_of(item), padded = (count + kLanes - 1) / kLanes * kLanes;
        const int64_t before = item.granule * plan_.granule_rows();
        for (int row = 0; row < rows.count(); ++row) {
            const int64_t seen = std::max<int64_t>(keys_of_token(a_, item.sequence, rows.token(row)) - before, 0);
            if (seen < count) {
                maxima[row] = pad_scores(scores + row * stride, static_cast<int>(seen), padded);
            }
        }
    }

    void note_scales(bool are_good)
    {
        if (!are_good) {
            has_bad_scale_.store(true, std::memory_order_relaxed);
        }
    }

    // What the block's rows keep of a granule, and the weighted sum of its V rows.
    void select_and_sum(const Item& item, const Block& block, float* scores, int64_t stride, Scratch& scratch)
    {
        const int count = count_keys_of(item), words = (count + kLanes - 1) / kLanes, rows = block.rows.count();
        HeadPart* parts = parts_of(item.number, block);
        std::fill_n(scratch.unions, words, 0u);
        for (int row = 0; row < rows; ++row) {
            const float least = threshold(block.rows, row);
            float* of_row = scores + row * stride;
            uint32_t* kept = scratch.kept + row * words;
            if (passes_ && keeps_weights(block.rows, row)) {
                const float least_weight = weight_of(least, parts[row].maximum);
                select_head<true>(of_row, count, least_weight, parts[row], kept, scratch.unions);
            } else {
                select_head<false>(of_row, count, least, parts[row], kept, scratch.unions);
            }
        }
        for (int row = 0; row < rows; ++row) {
            const int32_t key = parts[row].largest_key;
            parts[row].largest_is_fetched = (scratch.unions[key / kLanes] >> (key % kLanes) & 1) != 0;
        }
        const int in_union = count_keys(scratch.unions, words);
        value_rows_[item.number * blocks_ + block.number] = in_union;

        std::fill_n(sums_of(item.number, block), rows * padded_dim_, 0.0F);
        const bool sweeps =
            a_.path == kDense || (a_.path == kAuto && in_union > kDenseAbove * count) || in_union == count;
        const int listed = sweeps ? count : list_keys(scratch.unions, words, scratch.keys);
        const int32_t* keys = sweeps ? scratch.all_keys : scratch.keys;
        const KeptKeys kept{scratch.unions, scratch.kept, words};
        if (!a_.value_scale.are_there()) {
            add_values<Element>(item, block, keys, listed, {scores, stride}, kept);
            return;
        }
        if (a_.value_scale.are_by_row()) {
            const RowScales scales(a_, a_.value_scale, item.sequence, item.key_value_head);
            note_scales(scale_weights(scales, first_key(item), keys, listed, sweeps, rows, scores, stride));
        }
        add_values<Int8>(item, block, keys, listed, {scores, stride}, kept);
    }

    template <class Value>
    void add_values(const Item& item, const Block& block, const int32_t* keys, int count, const Weights& weights,
                    const KeptKeys& kept)
    {
        const int rows = block.rows.count();
        float* sums = sums_of(item.number, block);
        const Rows<Value> cached(a_, a_.value, item.sequence, item.key_value_head);
        WeightedValues<Value> values(cached, a_.head_dim, first_key(item));
        const HeadPart* parts = parts_of(item.number, block);
        const int64_t pairs = std::accumulate(parts, parts + rows, int64_t{0},
                                              [](int64_t sum, const HeadPart& part) { return sum + part.kept; });
        if (block.rows.tokens > 1 && rows >= kFewRows && pairs < kKeptBelow * count * rows && values.can_add_kept()) {
            values.add_kept(keys, count, kept, weights, rows, sums, padded_dim_);
        } else {
            values.add(keys, count, weights, rows, sums, padded_dim_);
        }
    }

    void write_rows(int64_t b, int64_t h)
    {
        const Sequence& sequence = plan_.sequence(b);
        const int64_t item = plan_.first_item(b, h);
        int64_t value_rows = 0;
        for (int64_t g = 0; g < sequence.granules * blocks_; ++g) {
            value_rows += value_rows_[item * blocks_ + g];
        }
        for (int number = 0; number < blocks_; ++number) {
            value_rows += write_block(block(b, h, number), item);
        }
        for (int64_t head = h * group_; head < (h + 1) * group_; ++head) {
            for (int token = 0; token < a_.tokens; ++token) {
                if (token < sequence.first_token || token >= sequence.end_token) {
                    write_empty_row(b, head, token);
                }
            }
        }
        if (a_.result == kOutputWithStatistics) {
            a_.value_rows[b * a_.key_value_heads + h] = static_cast<int32_t>(value_rows);
        }
    }

    // Gives the number of V rows that stand in where rows keep nothing, and that no row keeps.
    int write_block(const Block& block, int64_t item)
    {
        const Sequence& sequence = plan_.sequence(block.rows.sequence);
        int64_t standing_in[kMostBlockRows];  // keys
        int count = 0;
        for (int row = 0; row < block.rows.count(); ++row) {
            const HeadPart* parts = parts_of(item, block) + row;
            const RowMasses masses = combine_masses(parts, sequence.granules, item_rows_);
            if (masses.is_empty()) {
                write_empty_row(block.rows.sequence, block.rows.head(row), block.rows.token(row));
                continue;
            }
            const HeadPart& best = parts[masses.best_granule * item_rows_];
            const int64_t key = sequence.start + masses.best_granule * plan_.granule_rows() + best.largest_key;
            write_row(block, row, item, masses, key);
            if (masses.kept == 0 && !best.largest_is_fetched &&
                std::find(standing_in, standing_in + count, key) == standing_in + count) {
                standing_in[count++] = key;
            }
        }
        return count;
    }

    // One row; `largest_key` is the key of its largest score, which stands in where it keeps nothing.
    void write_row(const Block& block, int row, int64_t item, RowMasses masses, int64_t largest_key)
    {
        const int64_t b = block.rows.sequence, head = block.rows.head(row), h = head / group_;
        const int64_t token = block.rows.token(row), number = row_number(b, head, token);
        alignas(64) float loaded[kMostHeadDim + kDimStep] = {};
        float out[kMostHeadDim + kDimStep];
        const double lse = log_sum(masses, head);
        const bool stands_in = masses.kept == 0;
        if (stands_in && !masses.has_nan()) {
            a_.value_scale.are_there() ? load_value<Int8>(b, h, largest_key, loaded)
                                       : load_value<Element>(b, h, largest_key, loaded);
        } else {
            sum_granules(block, row, item, masses, loaded);
        }
        to_values(h, loaded, out);
        if (a_.result == kPartial) {
            write_partial(number, out_at(b, head, token), masses, out);
            return;
        }
        if (stands_in) {
            masses.kept = 1;
            masses.discarded_mass = std::max(masses.discarded_mass - 1.0, 0.0);
            masses.kept_mass += 1.0;
        }
        const double estimate =
            estimate_discarded_mass(a_, number, masses, threshold(block.rows, row), keys_of_token(a_, b, token));
        const float* mean = a_.value_mean;
        mean = mean == nullptr ? nullptr : mean + ((b * a_.key_value_heads + h) * a_.tokens + token) * a_.head_dim;
        // a NaN among the scores is in one of the masses, whichever of them the mode uses
        const double nothing = 0.0 * masses.total();
        const double denominator = masses.kept_mass + estimate + sink_mass(masses, head) + nothing;
        compensate(out, static_cast<int>(a_.head_dim), denominator, estimate, mean);
        Element::write(static_cast<Stored*>(a_.out) + out_at(b, head, token), out, static_cast<int>(a_.head_dim));
        if (a_.result == kOutputWithStatistics) {
            a_.lse[number] = static_cast<float>(lse);
            a_.kept[number] = static_cast<int32_t>(masses.kept);
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

    void sum_granules(const Block& block, int row, int64_t item, const RowMasses& masses, float* loaded)
    {
        for (int64_t g = 0; g < plan_.sequence(block.rows.sequence).granules; ++g) {
            const HeadPart& part = parts_of(item + g, block)[row];
            if (part.kept == 0) {
                continue;  // its sums are 0
            }
            const float* sums = sums_of(item + g, block) + row * padded_dim_;
            const Floats factor = broadcast(static_cast<float>(granule_factor(part.maximum, masses.maximum)));
            for (int64_t i = 0; i < padded_dim_; i += kLanes) {
                store(loaded + i, multiply_add(factor, load(sums + i), load(loaded + i)));
            }
        }
    }

    // Where the output of a row begins.
    int64_t out_at(int64_t b, int64_t head, int64_t token) const
    {
        const int64_t row =
            a_.is_out_by_token != 0 ? (b * a_.tokens + token) * a_.heads + head : row_number(b, head, token);
        return row * a_.head_dim;
    }

    void write_partial(int64_t row, int64_t at, const RowMasses& masses, float* out)
    {
        const double nothing = 0.0 * masses.total();
        compensate(out, static_cast<int>(a_.head_dim), (masses.kept == 0 ? 1.0 : masses.kept_mass) + nothing, 0.0,
                   nullptr);
        std::copy_n(out, a_.head_dim, static_cast<float*>(a_.out) + at);
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
    void write_empty_row(int64_t b, int64_t head, int64_t token)
    {
        const int64_t row = row_number(b, head, token);
        const int64_t size = static_cast<int64_t>(a_.result == kPartial ? sizeof(float) : sizeof(Stored));
        std::memset(static_cast<char*>(a_.out) + out_at(b, head, token) * size, 0,
                    static_cast<size_t>(a_.head_dim * size));
        if (a_.result == kPartial) {
            write_masses(row, RowMasses());
        } else if (a_.result == kOutputWithStatistics) {
            a_.lse[row] = -kInfinity;
            a_.kept[row] = 0;
        }
    }

    void write_empty_rows(int64_t b)
    {
        for (int64_t row = 0; row < a_.heads * a_.tokens; ++row) {
            write_empty_row(b, row / a_.tokens, row % a_.tokens);
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
    int64_t item_rows_;  // of a group, those behind the real tokens too
    int64_t padded_dim_;  // head_dim in whole steps
    bool samples_ahead_;
    // per item
    std::unique_ptr<HeadPart[]> parts_;          // [item_rows]
    std::unique_ptr<float[]> sums_;              // [item_rows][padded_dim], in the order of Element::load
    std::unique_ptr<int32_t[]> value_rows_;      // [blocks]
  // where probabilities are compared
    std::unique_ptr<float[]> threshold_of_row_;  // [B, Hq, Sq] in score units
    std::unique_ptr<Gates> gates_;               // per sequence and KV head: the thresholds of its rows
    std::unique_ptr<TwoPasses> passes_;          // where scores are kept until thresholds are known
    std::unique_ptr<float[]> kept_scores_;       // [places][granules][item_rows][granule_rows], scores or weights
    int64_t place_size_ = 0;
    // per sequence and KV head: granules that are not done
    std::unique_ptr<std::atomic<int64_t>[]> unfinished_;
    std::atomic<bool> has_bad_scale_{false};
};

}  // namespace toptheta
