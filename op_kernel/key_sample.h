// The sample of a row's keys from which its log-sum-exp is estimated: the first, some at equal distances, and the
// newest, numbered in the order of the keys. Of a short row it is all of them.
#pragma once

#include "kernel_common.h"

namespace toptheta {

class KeySample {
public:
    // `rows`: of the sequence
    TOPTHETA_DEVICE inline explicit KeySample(uint32_t rows = 0) : rows_(rows) {}

    TOPTHETA_DEVICE inline uint32_t Keys() const { return Least(rows_, kKeys); }

    // The row of the sequence that has a number in the sample.
    TOPTHETA_DEVICE inline uint32_t RowOf(uint32_t number) const
    {
        if (IsAll() || number < kStridedBegin) {
            return number;
        }
        if (number >= kStridedEnd) {
            return rows_ - kKeys + number;
        }
        const uint64_t passed = static_cast<uint64_t>(number - kStridedBegin) * Between();
        return kStridedBegin + static_cast<uint32_t>(passed / kStrided);
    }

    // How many of `count` keys of the sample from `number` on follow one another in the sequence.
    TOPTHETA_DEVICE inline uint32_t RunLength(uint32_t number, uint32_t count) const
    {
        if (IsAll() || number >= kStridedEnd) {
            return count;
        }
        return number < kStridedBegin ? Least(count, kStridedBegin - number) : 1;
    }

    // Keys [begin, end) of the sample at equal distances: as many stand for each other one as `Weight` says.
    TOPTHETA_DEVICE inline uint32_t StridedFrom(uint32_t begin) const { return Most(begin, kStridedBegin); }
    TOPTHETA_DEVICE inline uint32_t StridedUpTo(uint32_t end) const { return IsAll() ? 0 : Least(end, kStridedEnd); }
    TOPTHETA_DEVICE inline float Weight() const
    {
        return static_cast<float>(static_cast<int32_t>(Between())) * (1.0f / kStrided);
    }

private:
    static constexpr uint32_t kFirst = 16;
    static constexpr uint32_t kStrided = 256;
    static constexpr uint32_t kNewest = 128;
    static constexpr uint32_t kKeys = kFirst + kStrided + kNewest;
    static constexpr uint32_t kStridedBegin = kFirst;
    static constexpr uint32_t kStridedEnd = kFirst + kStrided;

    TOPTHETA_DEVICE inline bool IsAll() const { return rows_ <= kKeys; }
    TOPTHETA_DEVICE inline uint32_t Between() const { return rows_ - kFirst - kNewest; }

    uint32_t rows_;
};

}  // namespace toptheta
