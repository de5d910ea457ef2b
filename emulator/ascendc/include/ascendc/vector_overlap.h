// The rules for sources that overlap the destination (asc-devkit docs, general constraints on address overlap):
// inside a repeat they must be the same bytes or none, and no repeat may read what an earlier repeat wrote.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vector_operand.h"

namespace ascendc_host {

inline bool RangesMeet(uint64_t firstA, uint64_t endA, uint64_t firstB, uint64_t endB)
{
    return firstA < endB && firstB < endA;
}

// Same bytes in every repeat, and the repeats of the destination do not meet one another.
inline bool InPlace(const VectorOperand& destination, const VectorOperand& source, const VectorShape& shape)
{
    const uint32_t blocks = shape.lanes / destination.LanesPerBlock();
    const bool repeatsApart =
        shape.repeats == 1 || destination.repeatStride >= (blocks - 1) * destination.blockStride + 1;
    return repeatsApart && destination.view.offset == source.view.offset &&
           destination.elementBytes == source.elementBytes && destination.blockStride == source.blockStride &&
           (shape.repeats == 1 || destination.repeatStride == source.repeatStride);
}

class OverlapCheck {
public:
    OverlapCheck(const CallSite& site, const VectorOperand& destination, const VectorOperand& source,
                 const VectorShape& shape)
        : site_(site), destination_(destination), source_(source), shape_(shape)
    {}

    void Run()
    {
        const Span written = SpanOf(destination_, shape_);
        const Span read = SpanOf(source_, shape_);
        if (!RangesMeet(destination_.view.offset + written.first, destination_.view.offset + written.end,
                        source_.view.offset + read.first, source_.view.offset + read.end)) {
            return;
        }
        if (!InPlace(destination_, source_, shape_)) CompareRepeats(written);
    }

private:
    void CompareRepeats(const Span& written)
    {
        std::vector<bool> earlier(written.end, false);  // bytes that earlier repeats wrote, from the view's start
        for (uint32_t repeat = 0; repeat < shape_.repeats; ++repeat) {
            const LaneBits& bits = shape_.BitsOf(repeat);
            const RepeatRuns writes(bits, shape_.lanes, destination_.elementBytes);
            const RepeatRuns reads(bits, shape_.lanes, source_.elementBytes);
            if (!source_.mayNarrow && Partly(repeat, writes, reads)) return ReportPartly(repeat);
            if (!source_.mayCarry && ReadsEarlier(repeat, reads, earlier)) return ReportCarry(repeat);
            for (const BlockRun& run : writes) {
                const uint64_t start = Start(destination_, repeat, run) - destination_.view.offset;
                for (uint32_t byte = 0; byte < run.bytes; ++byte) earlier[start + byte] = true;
            }
        }
    }

    static uint64_t Start(const VectorOperand& operand, uint32_t repeat, const BlockRun& run)
    {
        return operand.view.offset + static_cast<uint64_t>(repeat) * operand.repeatStride * kBlockBytes +
               run.Offset(operand);
    }

    bool Partly(uint32_t repeat, const RepeatRuns& writes, const RepeatRuns& reads) const
    {
        for (uint32_t i = 0; i < writes.size(); ++i) {
            const uint64_t write = Start(destination_, repeat, writes[i]);
            for (uint32_t j = 0; j < reads.size(); ++j) {
                const uint64_t read = Start(source_, repeat, reads[j]);
                const bool same = i == j && write == read && destination_.elementBytes == source_.elementBytes &&
                                  writes[i].bytes == reads[j].bytes;
                if (!same && RangesMeet(write, write + writes[i].bytes, read, read + reads[j].bytes)) return true;
            }
        }
        return false;
    }

    bool ReadsEarlier(uint32_t repeat, const RepeatRuns& reads, const std::vector<bool>& earlier) const
    {
        for (const BlockRun& run : reads) {
            const uint64_t start = Start(source_, repeat, run);
            for (uint64_t at = start; at < start + run.bytes; ++at) {
                if (at < destination_.view.offset) continue;
                const uint64_t byte = at - destination_.view.offset;
                if (byte < earlier.size() && earlier[byte]) return true;
            }
        }
        return false;
    }

    void ReportPartly(uint32_t repeat) const
    {
        site_.Report(Check::kOverlap,
                     std::string("in repeat ") + std::to_string(repeat) + " " + source_.name + " and " +
                         destination_.name + " share some bytes but are not the same",
                     "let source and destination of a repeat be identical or disjoint");
    }

    void ReportCarry(uint32_t repeat) const
    {
        site_.Report(Check::kOverlap,
                     std::string("repeat ") + std::to_string(repeat) + " reads in " + source_.name +
                         " what an earlier repeat wrote to " + destination_.name,
                     "use another destination, or one call for each repeat with PipeBarrier<PIPE_V> between; only Add, "
                     "Sub, Mul, Max and Min may carry, through src1 with dstRepStride or src1RepStride 0");
    }

    const CallSite& site_;
    const VectorOperand& destination_;
    const VectorOperand& source_;
    const VectorShape& shape_;
};

}  // namespace ascendc_host
