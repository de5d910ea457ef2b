// Bank conflicts of the Unified Buffer, for the pessimistic modelled time.
//
// 48 banks of 4 KiB in 16 groups of three; the group is (address / 32) % 16. By asc-devkit's example bank_conflict_ub,
// which has a profile of eight cases: two reads in one cycle conflict in a group, whatever their banks; a read and a
// write conflict in a bank, unless they meet there block by block, where the write comes a repeat later; a source with
// a repeat stride of 0 is read once. The cycles are an estimate from the first repeats.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "vector_operand.h"

namespace ascendc_host {

constexpr uint32_t kBankGroups = 16;
constexpr uint32_t kBanks = 48;
constexpr uint32_t kSampledRepeats = 16;  // after 16 repeats every distance between operands has come round

// The bank of a block, by its number in the buffer.
constexpr uint32_t BankOf(uint32_t block)
{
    constexpr uint32_t layer = 64 * 1024 / kBlockBytes;  // blocks of the first bank of each group
    return (block % kBankGroups + kBankGroups * (block / layer)) % kBanks;
}

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
            ++(access == Access::kRead ? groupReads_ : groupWrites_)[row % kBankGroups];
            (access == Access::kRead ? reads_ : writes_)[BankOf(row)] = true;
        }
    }

    // Cycles beyond the first.
    uint32_t Extra() const
    {
        uint32_t ways = 1;
        bool meets = false;
        for (uint32_t group = 0; group < kBankGroups; ++group) {
            ways = std::max<uint32_t>({ways, groupReads_[group], groupWrites_[group]});
        }
        for (uint32_t bank = 0; bank < kBanks; ++bank) meets |= reads_[bank] && writes_[bank];
        return ways - 1 + (meets ? 1 : 0);
    }

private:
    std::array<uint8_t, kBankGroups> groupReads_ = {};
    std::array<uint8_t, kBankGroups> groupWrites_ = {};
    std::array<bool, kBanks> reads_ = {};
    std::array<bool, kBanks> writes_ = {};
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

// Whether the blocks of each repeat are written into the banks that those of the source are read from.
inline bool MeetBlockByBlock(const VectorOperand& destination, const VectorOperand& source)
{
    return destination.blockStride == source.blockStride && destination.elementBytes == source.elementBytes &&
           BankOf(destination.view.offset / kBlockBytes) == BankOf(source.view.offset / kBlockBytes);
}

template <typename... Sources>
double BankConflictCycles(const VectorShape& shape, const VectorOperand& destination, const Sources&... sources)
{
    const uint32_t sampled = std::min(shape.repeats, kSampledRepeats);
    const LaneBits& bits = shape.BitsOf(0);
    const bool late = (MeetBlockByBlock(destination, sources) || ... || false);
    const RepeatRuns writes(bits, shape.lanes, destination.elementBytes);
    uint32_t extra = 0;
    for (uint32_t repeat = 0; repeat < sampled; ++repeat) {
        BankAccesses accesses;
        const auto read = [&](const VectorOperand& source) {
            if (source.repeatStride == 0 && shape.repeats > 1) return;
            accesses.Add(source, RepeatRuns(bits, shape.lanes, source.elementBytes), repeat, Access::kRead);
        };
        (read(sources), ...);
        if (!late) {
            accesses.Add(destination, writes, repeat, Access::kWrite);
        } else if (repeat > 0) {
            accesses.Add(destination, writes, repeat - 1, Access::kWrite);
        }
        extra += accesses.Extra();
    }
    return static_cast<double>(extra) * shape.repeats / sampled;
}

}  // namespace ascendc_host
