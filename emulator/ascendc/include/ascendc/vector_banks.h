// Bank conflicts of the Unified Buffer, for the pessimistic modelled time.
//
// 48 banks of 4 KiB in 16 groups of three; the group is (address / 32) % 16. In one cycle a bank serves one access and
// a group two reads or one write (asc-devkit guide, avoiding bank conflicts in the UB). The cycles are an estimate from
// the first repeats: nothing here is measured.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "vector_operand.h"
#include "vector_overlap.h"

namespace ascendc_host {

constexpr uint32_t kBankGroups = 16;
constexpr uint32_t kBanks = 48;
constexpr uint32_t kSampledRepeats = 16;  // after 16 repeats every distance between operands has come round

class BankAccesses {
public:
    void Add(const VectorOperand& operand, const RepeatRuns& runs, uint32_t repeat, Access access)
    {
        const uint32_t start = operand.view.offset / kBlockBytes + repeat * operand.repeatStride;
        uint32_t previous = ~0u;
        for (const BlockRun& run : runs) {
            const uint32_t row = start + run.block * operand.blockStride;
            if (row == previous) continue;
            previous = row;
            const uint32_t group = row % kBankGroups;
            const uint32_t bank = group + kBankGroups * (row * kBlockBytes / (64 * 1024));
            ++(access == Access::kRead ? groupReads_ : groupWrites_)[group];
            ++(access == Access::kRead ? bankReads_ : bankWrites_)[bank % kBanks];
        }
    }

    // Cycles beyond the first.
    uint32_t Extra() const
    {
        uint32_t ways = 1;
        bool meets = false;
        for (uint32_t group = 0; group < kBankGroups; ++group) {
            ways = std::max<uint32_t>({ways, (groupReads_[group] + 1u) / 2, groupWrites_[group]});
        }
        for (uint32_t bank = 0; bank < kBanks; ++bank) {
            ways = std::max<uint32_t>(ways, bankReads_[bank]);
            meets |= bankReads_[bank] != 0 && bankWrites_[bank] != 0;
        }
        return ways - 1 + (meets ? 1 : 0);
    }

private:
    std::array<uint8_t, kBankGroups> groupReads_ = {};
    std::array<uint8_t, kBankGroups> groupWrites_ = {};
    std::array<uint8_t, kBanks> bankReads_ = {};
    std::array<uint8_t, kBanks> bankWrites_ = {};
};

// The reads of one source alone.
inline double SourceConflictCycles(const VectorShape& shape, const VectorOperand& source)
{
    const uint32_t sampled = std::min(shape.repeats, kSampledRepeats);
    const RepeatRuns reads(shape.BitsOf(0), shape.lanes, source.elementBytes);
    uint32_t extra = 0;
    for (uint32_t repeat = 0; repeat < sampled; ++repeat) {
        BankAccesses accesses;
        accesses.Add(source, reads, repeat, Access::kRead);
        extra += accesses.Extra();
    }
    return static_cast<double>(extra) * shape.repeats / sampled;
}

// A source at the destination's own place is read long before it is written, so it meets no write.
template <typename... Sources>
double BankConflictCycles(const VectorShape& shape, const VectorOperand& destination, const Sources&... sources)
{
    const uint32_t sampled = std::min(shape.repeats, kSampledRepeats);
    const LaneBits& bits = shape.BitsOf(0);
    const bool inPlace = (InPlace(destination, sources, shape) || ... || false);
    const RepeatRuns writes(bits, shape.lanes, destination.elementBytes);
    uint32_t extra = 0;
    for (uint32_t repeat = 0; repeat < sampled; ++repeat) {
        BankAccesses accesses;
        (accesses.Add(sources, RepeatRuns(bits, shape.lanes, sources.elementBytes), repeat, Access::kRead), ...);
        if (!inPlace) accesses.Add(destination, writes, repeat, Access::kWrite);
        extra += accesses.Extra();
    }
    return static_cast<double>(extra) * shape.repeats / sampled;
}

}  // namespace ascendc_host
