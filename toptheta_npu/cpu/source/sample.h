// The keys of a row from whose scores its LSE is estimated; fallback/sampled.py says the same in PyTorch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "row_result.h"
#include "rows.h"
#include "selection.h"

namespace toptheta {

// The first keys, those at equal distances behind them, and the newest.
constexpr int kFirstKeys = 16;
constexpr int kStridedKeys = 256;
constexpr int kNewestKeys = 128;
constexpr int kSampledKeys = kFirstKeys + kStridedKeys + kNewestKeys;
// Of a row of more keys the sample is so small a part that reading it first costs less than keeping all scores.
constexpr int64_t kMostKeptKeys = 10 * kSampledKeys;

// Of a row that sees `visible` keys: all of them where they are as few as a sample.
class Sample {
public:
    explicit Sample(int64_t visible)
        : count_(static_cast<int>(std::min<int64_t>(visible, kSampledKeys))),
          between_(std::max<int64_t>(visible - kFirstKeys - kNewestKeys, kStridedKeys))
    {
        for (int i = 0; i < count_; ++i) {
            places_[i] = i < kFirstKeys ? i : kFirstKeys + (i - kFirstKeys) * between_ / kStridedKeys;
        }
        for (int i = kFirstKeys + kStridedKeys; i < count_; ++i) {
            places_[i] = visible - count_ + i;
        }
    }

    int count() const { return count_; }
    // In ascending order; `first` is the first key that the row sees.
    Keys keys(int64_t first) const { return {first, places_, places_ + count_}; }

    // Finds the scores of the sample among those of all keys, which are in granules of `rows` that lie `stride` apart.
    void find(int64_t rows, int64_t stride, int64_t* offsets) const
    {
        int64_t granule = 0;
        for (int i = 0; i < count_; ++i) {
            while (places_[i] >= (granule + 1) * rows) {
                ++granule;
            }
            offsets[i] = places_[i] + granule * (stride - rows);
        }
    }

    // The mass of the row, from kSampledKeys scores of which those past the sample are not set.
    RowMasses masses(float* sampled) const
    {
        std::fill(sampled + count_, sampled + kSampledKeys, -kInfinity);
        const float maximum = largest_score(sampled, kSampledKeys);
        const double strided = weigh_head(sampled + kFirstKeys, kStridedKeys, maximum, false);
        const double first = weigh_head(sampled, kFirstKeys, maximum, false);
        const double newest = weigh_head(sampled + kFirstKeys + kStridedKeys, kNewestKeys, maximum, false);
        RowMasses row;
        row.maximum = maximum;
        row.discarded_mass = first + strided * static_cast<double>(between_) / kStridedKeys + newest;
        return row;
    }

private:
    int count_;
    int64_t between_;  // keys that the strided ones stand for
    int64_t places_[kSampledKeys];
};

}  // namespace toptheta
