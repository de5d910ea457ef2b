// The thresholds of rows in units of their scores: as they are given, or by the LSE of the whole row or of a sample.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "row_result.h"
#include "sample.h"
#include "step_parts.h"

namespace toptheta {

class RowThresholds {
public:
    explicit RowThresholds(const StepParts& parts) : step_(parts), a_(parts.a) {}

    // Makes room for thresholds that compare probabilities.
    void compare_probabilities()
    {
        threshold_of_row_ = std::make_unique<float[]>(static_cast<size_t>(a_.batch * a_.heads * a_.tokens));
    }
    bool compares_probabilities() const { return threshold_of_row_ != nullptr; }

    float threshold(const QueryRows& rows, int row) const
    {
        return threshold_of_row_ ? threshold_of_row_[step_.row_number(rows, row)] : given_threshold(rows, row);
    }

    // A row that drops by probability keeps weights between the passes, so that no exponential is computed twice. Below
    // this θ a weight may be rounded to 0 where its score is above the threshold.
    bool keeps_weights(const QueryRows& rows, int row) const
    {
        return a_.placement == kPostSoftmax && given_threshold(rows, row) > 1e-30F;
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

    void set_threshold(const QueryRows& rows, int row, double lse)
    {
        const float theta = given_threshold(rows, row);
        threshold_of_row_[step_.row_number(rows, row)] =
            theta <= 0.0F ? -kInfinity : static_cast<float>(std::log(static_cast<double>(theta)) + lse);
    }

    // softmax(a) > theta means a > ln theta + LSE; theta <= 0 is dense.
    void find_thresholds(int64_t pair)
    {
        const int64_t b = pair / a_.key_value_heads, h = pair % a_.key_value_heads;
        for (int number = 0; number < step_.blocks; ++number) {
            const Block block = step_.block(b, h, number);
            if (a_.placement == kSampledSoftmax) {
                find_sampled_thresholds(block, step_.plan.item(step_.plan.first_item(b, h)));
                continue;
            }
            for (int row = 0; row < block.rows.count(); ++row) {
                find_threshold(block, row, step_.plan.first_item(b, h));
            }
        }
    }

private:
    void find_threshold(const Block& block, int row, int64_t item)
    {
        if (a_.row_lse != nullptr) {
            set_threshold(block.rows, row, a_.row_lse[step_.row_number(block.rows, row)]);
            return;
        }
        const int64_t granules = step_.plan.sequence(block.rows.sequence).granules;
        const RowMasses masses = combine_masses(step_.parts_of(item, block) + row, granules, step_.item_rows);
        set_threshold(block.rows, row, log_sum(masses, block.rows.head(row)));
    }

    // By a sample of the kept scores of all keys, which begin with those of `first`.
    void find_sampled_thresholds(const Block& block, const Item& first)
    {
        const QueryRows& rows = block.rows;
        const float* scores = step_.kept_scores_of(first, block);
        const int64_t stride = step_.kept_score_stride(), granule_stride = step_.item_rows * stride;
        int64_t offsets[kSampledKeys];
        float sampled[kSampledKeys];
        for (int token = 0; token < rows.count(); token += rows.heads) {
            const Sample sample(keys_of_token(a_, rows.sequence, rows.token(token)));
            sample.find(step_.plan.granule_rows(), granule_stride, offsets);
            for (int row = token; row < token + rows.heads; ++row) {
                const float* of_row = scores + row * stride;
                std::transform(offsets, offsets + sample.count(), sampled, [&](int64_t at) { return of_row[at]; });
                set_threshold(rows, row, log_sum(sample.masses(sampled), rows.head(row)));
            }
        }
    }

    float given_threshold(const QueryRows& rows, int row) const
    {
        const int64_t token = a_.threshold_tokens == 1 ? 0 : rows.token(row);
        return a_
            .threshold[rows.sequence * a_.threshold_sequence_stride + rows.head(row) * a_.threshold_tokens + token];
    }

    const StepParts& step_;
    const Arguments& a_;
    std::unique_ptr<float[]> threshold_of_row_;  // [B, Hq, Sq] in score units, where probabilities are compared
};

}  // namespace toptheta
