// A decode step: every granule is scored, selected and summed up by one thread; the last of a KV head combines its
// rows, which are its query heads of all tokens.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>

#include "gates.h"
#include "row_output.h"
#include "row_scores.h"
#include "row_thresholds.h"
#include "scales.h"
#include "scores.h"
#include "selection.h"
#include "step_parts.h"
#include "value_checks.h"
#include "values.h"
#include "work.h"

namespace toptheta {

// Above this share of keys that some row of the block keeps, all V rows of a granule are read in one sweep. Below, the
// rows that are called into the cache ahead of time come as fast one by one.
constexpr double kDenseAbove = 0.8;

// Below this share of the weights of several tokens that are not 0, a V row is added up only for the rows that keep it.
constexpr double kKeptBelow = 0.5;
constexpr int kFewRows = 4;  // of weights, for which the reads count and not the work

template <class Element>
class Step {
public:
    explicit Step(const Arguments& arguments)
        : step_(arguments, arguments.key_scale.are_there() ? sizeof(Int8::Stored) : sizeof(typename Element::Stored),
                RowOutput<Element>::kDimStep),
          a_(arguments),
          thresholds_(step_),
          output_(step_, thresholds_),
          unfinished_(new std::atomic<int64_t>[static_cast<size_t>(a_.batch * a_.key_value_heads)])
    {
        int64_t most_keys = 0;
        for (int64_t b = 0; b < a_.batch; ++b) {
            most_keys = std::max(most_keys, step_.plan.sequence(b).length);
            for (int64_t h = 0; h < a_.key_value_heads; ++h) {
                unfinished_[b * a_.key_value_heads + h].store(step_.plan.sequence(b).granules,
                                                              std::memory_order_relaxed);
            }
        }
        // keys by columns that are far apart take as long to read as all of them
        samples_ahead_ = a_.placement == kSampledSoftmax && most_keys > kMostKeptKeys && !a_.key.lies_by_columns();
    }

    // False: a scale that was read is negative or not finite, so what is written means nothing.
    bool run()
    {
        for (int64_t b = 0; b < a_.batch; ++b) {
            if (step_.plan.sequence(b).length == 0) {
                output_.write_empty_rows(b);
            }
        }
        const int64_t pairs = a_.batch * a_.key_value_heads;
        if (a_.placement != kPreSoftmax) {
            thresholds_.compare_probabilities();
            gates_ = std::make_unique<Gates>(pairs);
        }
        if (samples_ahead_) {
            run_behind_gates(step_.plan.items(), [this](int64_t number) { attend_item(step_.plan.item(number)); });
        } else if (a_.placement != kPreSoftmax && a_.row_lse == nullptr) {
            run_two_passes();
        } else {
            for (int64_t pair = 0; thresholds_.compares_probabilities() && pair < pairs; ++pair) {
                thresholds_.find_thresholds(pair);
            }
            run_all(step_.plan.items(), [this](int64_t number) { attend_item(step_.plan.item(number)); });
        }
        return !step_.has_bad_scale.load(std::memory_order_relaxed);
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
        step_.keep_scores();
        run_behind_gates(step_.passes->turns(), [this](int64_t number) {
            const TwoPasses::Turn turn = step_.passes->turn(number);
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
            attend_item(step_.plan.item(turn.item));
            step_.passes->end_second(turn.pair);
        }
    }

    void score_item(const TwoPasses::Turn& turn)
    {
        if (!gates_->wait_until([&] { return step_.passes->is_place_free(turn.pair); })) {
            return;
        }
        const Item item = step_.plan.item(turn.item);
        const int count = step_.count_keys_of(item), padded = (count + kLanes - 1) / kLanes * kLanes;
        for (int number = 0; number < step_.blocks; ++number) {
            const Block block = step_.block(item, number);
            float* scores = step_.kept_scores_of(item, block);
            float maxima[kMostBlockRows];
            compute_scores(item, block, scores, step_.kept_score_stride(), maxima);
            for (int row = 0; row < block.rows.count(); ++row) {
                float* of_row = scores + row * step_.kept_score_stride();
                const int32_t largest = first_largest(of_row, padded, maxima[row]);
                const float mass =
                    a_.placement == kSampledSoftmax
                        ? 0.0F
                        : weigh_head(of_row, padded, maxima[row], thresholds_.keeps_weights(block.rows, row));
                step_.parts_of(item.number, block)[row] = {maxima[row], 0.0F, mass, 0, largest, false};
            }
        }
        if (step_.passes->end_first(turn.pair)) {
            thresholds_.find_thresholds(turn.pair);
            gates_->open(turn.pair);
        }
    }

    // Scores the samples of a KV head's rows, of which each token has its own, and finds their thresholds.
    void sample_ahead(const Item& item, Scratch& scratch)
    {
        for (int number = 0; number < step_.blocks; ++number) {
            QueryRows rows = step_.block(item, number).rows;
            float* scores = scratch.scores_of(rows.heads);
            const int end = rows.first_token + rows.tokens;
            for (rows.tokens = 1; rows.first_token < end; ++rows.first_token) {
                const Sample sample(keys_of_token(a_, item.sequence, rows.first_token));
                const Keys keys = sample.keys(step_.plan.sequence(item.sequence).start);
                float maxima[kMostHeads];
                step_.note_scales(compute_row_scores<Element>(a_, rows, item.key_value_head, keys, sample.count(),
                                                              scores, kScoreStride, maxima));
                for (int row = 0; row < rows.heads; ++row) {
                    thresholds_.set_threshold(
                        rows, row, thresholds_.log_sum(sample.masses(scores + row * kScoreStride), rows.head(row)));
                }
            }
        }
    }

    void attend_item(const Item& item)
    {
        Scratch& scratch = Scratch::of_this_thread();
        if (samples_ahead_ && item.granule == 0) {
            sample_ahead(item, scratch);
            gates_->open(step_.pair_of(item));
        }
        for (int number = 0; number < step_.blocks; ++number) {
            const Block block = step_.block(item, number);
            if (step_.passes) {
                select_and_sum(item, block, step_.kept_scores_of(item, block), step_.kept_score_stride(), scratch);
                continue;
            }
            float* scores = scratch.scores_of(block.rows.count());
            float maxima[kMostBlockRows];
            compute_scores(item, block, scores, kScoreStride, maxima);
            if (samples_ahead_ && !gates_->wait_for(step_.pair_of(item))) {
                return;
            }
            const int count = step_.count_keys_of(item), padded = (count + kLanes - 1) / kLanes * kLanes;
            for (int row = 0; row < block.rows.count(); ++row) {
                const bool keeps = maxima[row] > thresholds_.threshold(block.rows, row);
                const int32_t largest = keeps ? 0 : first_largest(scores + row * kScoreStride, padded, maxima[row]);
                step_.parts_of(item.number, block)[row] = {maxima[row], 0.0F, 0.0F, 0, largest, false};
            }
            select_and_sum(item, block, scores, kScoreStride, scratch);
        }
        if (unfinished_[step_.pair_of(item)].fetch_sub(1, std::memory_order_acq_rel) == 1) {
            output_.write_rows(item.sequence, item.key_value_head);
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
            step_.note_scales(compute_row_scores<Element>(a_, rows, item.key_value_head, {step_.first_key(item)},
                                                          step_.count_keys_of(item), scores + row * stride, stride,
                                                          maxima + row));
            hide_later_keys(item, rows, scores + row * stride, stride, maxima + row);
        }
    }

    // A token does not see the keys of the tokens behind it.
    void hide_later_keys(const Item& item, const QueryRows& rows, float* scores, int64_t stride, float* maxima)
    {
        const int count = step_.count_keys_of(item), padded = (count + kLanes - 1) / kLanes * kLanes;
        const int64_t before = item.granule * step_.plan.granule_rows();
        for (int row = 0; row < rows.count(); ++row) {
            const int64_t seen = std::max<int64_t>(keys_of_token(a_, item.sequence, rows.token(row)) - before, 0);
            if (seen < count) {
                maxima[row] = pad_scores(scores + row * stride, static_cast<int>(seen), padded);
            }
        }
    }

    // What the block's rows keep of a granule, and the weighted sum of its V rows.
    void select_and_sum(const Item& item, const Block& block, float* scores, int64_t stride, Scratch& scratch)
    {
        const int count = step_.count_keys_of(item), words = (count + kLanes - 1) / kLanes, rows = block.rows.count();
        HeadPart* parts = step_.parts_of(item.number, block);
        std::fill_n(scratch.unions, words, 0u);
        for (int row = 0; row < rows; ++row) {
            const float least = thresholds_.threshold(block.rows, row);
            float* of_row = scores + row * stride;
            uint32_t* kept = scratch.kept + row * words;
            if (step_.passes && thresholds_.keeps_weights(block.rows, row)) {
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
        step_.value_rows[item.number * step_.blocks + block.number] = in_union;

        std::fill_n(step_.sums_of(item.number, block), rows * step_.padded_dim, 0.0F);
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
            step_.note_scales(scale_weights(scales, step_.first_key(item), keys, listed, sweeps, rows, scores, stride));
        }
        add_values<Int8>(item, block, keys, listed, {scores, stride}, kept);
    }

    template <class Value>
    void add_values(const Item& item, const Block& block, const int32_t* keys, int count, const Weights& weights,
                    const KeptKeys& kept)
    {
        const int rows = block.rows.count();
        float* sums = step_.sums_of(item.number, block);
        const Rows<Value> cached(a_, a_.value, item.sequence, item.key_value_head);
        WeightedValues<Value> values(cached, a_.head_dim, step_.first_key(item));
        const HeadPart* parts = step_.parts_of(item.number, block);
        const int64_t pairs = std::accumulate(parts, parts + rows, int64_t{0},
                                              [](int64_t sum, const HeadPart& part) { return sum + part.kept; });
        if (block.rows.tokens > 1 && rows >= kFewRows && pairs < kKeptBelow * count * rows && values.can_add_kept()) {
            values.add_kept(keys, count, kept, weights, rows, sums, step_.padded_dim);
        } else {
            values.add(keys, count, weights, rows, sums, step_.padded_dim);
        }
    }

    StepParts step_;
    const Arguments& a_;
    RowThresholds thresholds_;
    RowOutput<Element> output_;
    bool samples_ahead_;
    std::unique_ptr<Gates> gates_;  // per sequence and KV head: its thresholds, where probabilities are compared
    std::unique_ptr<std::atomic<int64_t>[]> unfinished_;  // per sequence and KV head: granules that are not done
};

// Checks the values in lengths, starts, thresholds, masses and block tables, and runs the step. False: one is wrong,
// and nothing is written; or a scale of int8 rows is, which is seen as it is read, so outputs may be written.
template <class Element>
bool run_step(const Arguments& arguments)
{
    return are_values_good(arguments) && Step<Element>(arguments).run();
}

}  // namespace toptheta
