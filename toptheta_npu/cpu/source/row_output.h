// The output of a KV head's rows, once all of its granules are summed up.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "row_result.h"
#include "rows.h"
#include "row_thresholds.h"
#include "scales.h"
#include "step_parts.h"

namespace toptheta {

template <class Element>
class RowOutput {
public:
    using Stored = typename Element::Stored;
    static constexpr int kDimStep = Element::kStep > Int8::kStep ? Element::kStep : Int8::kStep;

    RowOutput(StepParts& parts, const RowThresholds& thresholds) : step_(parts), a_(parts.a), thresholds_(thresholds) {}

    void write_rows(int64_t b, int64_t h)
    {
        const Sequence& sequence = step_.plan.sequence(b);
        const int64_t item = step_.plan.first_item(b, h);
        int64_t value_rows = 0;
        for (int64_t g = 0; g < sequence.granules * step_.blocks; ++g) {
            value_rows += step_.value_rows[item * step_.blocks + g];
        }
        for (int number = 0; number < step_.blocks; ++number) {
            value_rows += write_block(step_.block(b, h, number), item);
        }
        for (int64_t head = h * step_.group; head < (h + 1) * step_.group; ++head) {
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

    void write_empty_rows(int64_t b)
    {
        for (int64_t row = 0; row < a_.heads * a_.tokens; ++row) {
            write_empty_row(b, row / a_.tokens, row % a_.tokens);
        }
        if (a_.result == kOutputWithStatistics) {
            std::fill_n(a_.value_rows + b * a_.key_value_heads, a_.key_value_heads, 0);
        }
    }

private:
    // Gives the number of V rows that stand in where rows keep nothing, and that no row keeps.
    int write_block(const Block& block, int64_t item)
    {
        const Sequence& sequence = step_.plan.sequence(block.rows.sequence);
        int64_t standing_in[kMostBlockRows];  // keys
        int count = 0;
        for (int row = 0; row < block.rows.count(); ++row) {
            const HeadPart* parts = step_.parts_of(item, block) + row;
            const RowMasses masses = combine_masses(parts, sequence.granules, step_.item_rows);
            if (masses.is_empty()) {
                write_empty_row(block.rows.sequence, block.rows.head(row), block.rows.token(row));
                continue;
            }
            const HeadPart& best = parts[masses.best_granule * step_.item_rows];
            const int64_t key = sequence.start + masses.best_granule * step_.plan.granule_rows() + best.largest_key;
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
        const int64_t b = block.rows.sequence, head = block.rows.head(row), h = head / step_.group;
        const int64_t token = block.rows.token(row), number = step_.row_number(b, head, token);
        alignas(64) float loaded[kMostHeadDim + kDimStep] = {};
        float out[kMostHeadDim + kDimStep];
        const double lse = thresholds_.log_sum(masses, head);
        const bool stands_in = masses.kept == 0;
        if (stands_in && !masses.has_nan()) {
            a_.value_scale.are_there() ? load_value<Int8>(b, h, largest_key, loaded)
                                       : load_value<Element>(b, h, largest_key, loaded);
        } else {
            sum_granules(block, row, item, masses, loaded);
        }
        to_values(h, loaded, out);
        if (a_.result == kPartial) {
            write_partial(number, step_.out_at(b, head, token), masses, out);
            return;
        }
        if (stands_in) {
            masses.kept = 1;
            masses.discarded_mass = std::max(masses.discarded_mass - 1.0, 0.0);
            masses.kept_mass += 1.0;
        }
        const double estimate = estimate_discarded_mass(a_, number, masses, thresholds_.threshold(block.rows, row),
                                                        keys_of_token(a_, b, token));
        const float* mean = a_.value_mean;
        mean = mean == nullptr ? nullptr : mean + ((b * a_.key_value_heads + h) * a_.tokens + token) * a_.head_dim;
        // a NaN among the scores is in one of the masses, whichever of them the mode uses
        const double nothing = 0.0 * masses.total();
        const double denominator = masses.kept_mass + estimate + sink_mass(masses, head) + nothing;
        compensate(out, static_cast<int>(a_.head_dim), denominator, estimate, mean);
        Element::write(static_cast<Stored*>(a_.out) + step_.out_at(b, head, token), out, static_cast<int>(a_.head_dim));
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
            step_.note_scales(bits(are_bad_scales(scale)) == 0);
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
        for (int64_t g = 0; g < step_.plan.sequence(block.rows.sequence).granules; ++g) {
            const HeadPart& part = step_.parts_of(item + g, block)[row];
            if (part.kept == 0) {
                continue;  // its sums are 0
            }
            const float* sums = step_.sums_of(item + g, block) + row * step_.padded_dim;
            const Floats factor = broadcast(static_cast<float>(granule_factor(part.maximum, masses.maximum)));
            for (int64_t i = 0; i < step_.padded_dim; i += kLanes) {
                store(loaded + i, multiply_add(factor, load(sums + i), load(loaded + i)));
            }
        }
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
        const int64_t row = step_.row_number(b, head, token);
        const int64_t size = static_cast<int64_t>(a_.result == kPartial ? sizeof(float) : sizeof(Stored));
        std::memset(static_cast<char*>(a_.out) + step_.out_at(b, head, token) * size, 0,
                    static_cast<size_t>(a_.head_dim * size));
        if (a_.result == kPartial) {
            write_masses(row, RowMasses());
        } else if (a_.result == kOutputWithStatistics) {
            a_.lse[row] = -kInfinity;
            a_.kept[row] = 0;
        }
    }

    double sink_mass(const RowMasses& masses, int64_t head) const
    {
        return a_.learnable_sink == nullptr ? 0.0
                                            : std::exp(static_cast<double>(a_.learnable_sink[head]) - masses.maximum);
    }

    StepParts& step_;
    const Arguments& a_;
    const RowThresholds& thresholds_;
};

}  // namespace toptheta
