// GatherMask: packs the elements whose mask bit is 1, and counts them.
//
// The public header reads the count register right after the instruction was issued. Without automatic synchronisation
// the instruction has not finished then, so rsvdCnt gets a poison value here; the count is to be read by
// GetGatherMaskRemainCount behind a V_S flag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "duplicate.h"
#include "library_calls.h"
#include "machine/defects.h"
#include "repeat_params.h"
#include "vector_lanes.h"

namespace ascendc_host {

constexpr uint64_t kUnfinishedCount = ~0ull;

// The elements that a GatherMask looks at: `perRepeat` in each repeat.
struct GatherRange {
    uint64_t perRepeat;
    uint32_t repeats;
    uint32_t blockStride;
    uint32_t repeatStride;

    uint64_t Offset(uint32_t repeat, uint64_t element, uint32_t elementBytes) const
    {
        const uint32_t perBlock = kBlockBytes / elementBytes;
        return (static_cast<uint64_t>(repeat) * repeatStride + element / perBlock * blockStride) * kBlockBytes +
               element % perBlock * elementBytes;
    }
};

inline std::optional<GatherRange> GatherRangeOf(const CallSite& site, uint32_t elementBytes, bool reduceMode,
                                                uint32_t mask, const AscendC::GatherMaskParams& params)
{
    const uint32_t wholeRepeat = kRepeatBytes / elementBytes;
    const GatherRange range{reduceMode ? mask : wholeRepeat, params.repeatTimes, params.src0BlockStride,
                            params.src0RepeatStride};
    if (range.repeats == 0 || range.perRepeat == 0) {
        site.Report(Check::kParameter,
                    "repeatTimes is " + std::to_string(params.repeatTimes) + " and mask is " + std::to_string(mask),
                    "give at least one repeat, and in counter mode (reduceMode true) the elements of a repeat as mask");
        return std::nullopt;
    }
    if (range.blockStride != 1 && range.perRepeat > wholeRepeat) {
        site.Report(
            Check::kUnsupported,
            "counter mode over more than 256 bytes with src0BlockStride " + std::to_string(params.src0BlockStride),
            "use src0BlockStride 1; the documents leave this case open");
    }
    return range;
}

inline void ReadGatherSource(Instruction& instruction, const VectorOperand& source, const GatherRange& range)
{
    instruction.CheckAligned(source.view, kBlockBytes, source.name);
    const uint32_t bytes = source.elementBytes;
    const uint64_t end = range.Offset(range.repeats - 1, range.perRepeat - 1, bytes) + bytes;
    const uint32_t base = instruction.CheckSpan(source.view, 0, end, source.name);
    const uint32_t perBlock = source.LanesPerBlock();
    for (uint32_t repeat = 0; repeat < range.repeats; ++repeat) {
        for (uint64_t element = 0; element < range.perRepeat; element += perBlock) {
            const uint64_t count = std::min<uint64_t>(perBlock, range.perRepeat - element);
            instruction.ReadBlock(base + static_cast<uint32_t>(range.Offset(repeat, element, bytes)),
                                  static_cast<uint32_t>(count * bytes));
        }
    }
}

// The bytes that the destination may need.
inline uint64_t AtMost(const VectorOperand& to, const GatherRange& range)
{
    return std::min<uint64_t>(range.perRepeat * range.repeats * to.elementBytes, to.view.size);
}

// Packing in place is allowed: the result never overtakes what is still to be read.
inline void CheckGatherOverlap(const CallSite& site, const VectorOperand& to, const VectorOperand& from,
                               const GatherRange& range)
{
    if (to.view.offset == from.view.offset) return;
    const uint64_t end = range.Offset(range.repeats - 1, range.perRepeat - 1, from.elementBytes) + from.elementBytes;
    RequireDisjoint(site, to, {0, AtMost(to, range)}, from, {0, end});
}

// Packs the elements that keeps(repeat, element) chooses. Returns how many.
template <typename T, typename Keeps>
uint64_t Pack(Instruction& instruction, const Operand<T>& to, const Operand<T>& from, const GatherRange& range,
              Keeps keeps)
{
    std::vector<T> kept;
    const uint8_t* source = Core::Current().Local(from.view.offset);
    for (uint32_t repeat = 0; repeat < range.repeats; ++repeat) {
        for (uint64_t element = 0; element < range.perRepeat; ++element) {
            if (!keeps(repeat, element)) continue;
            kept.push_back(LoadLanes<T, 1>(source + range.Offset(repeat, element, sizeof(T)))[0]);
        }
    }
    const uint64_t bytes = kept.size() * sizeof(T);
    instruction.CheckAligned(to.view, kBlockBytes, to.name);
    if (bytes != 0) std::memcpy(instruction.Write(to.view, 0, bytes), kept.data(), bytes);
    const uint64_t padded = std::min<uint64_t>((bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes, to.view.size);
    if (padded > bytes) instruction.WriteUndefined(to.view, bytes, padded - bytes);
    return kept.size();
}

template <typename T>
uint64_t FinishGather(Instruction& instruction, const GatherRange& range, uint32_t mask, uint64_t kept)
{
    constexpr uint32_t lanes = kRepeatBytes / sizeof(T);
    const uint64_t steps = range.repeats * ((range.perRepeat + lanes - 1) / lanes);
    instruction.GatherMaskCost(static_cast<double>(steps));
    const bool dropped = Planted(Defect::kGatherMaskCountsDropped);
    Core::Current().WriteRegister(Register::kGatherMaskCount, dropped ? range.perRepeat * range.repeats - kept : kept);
    CurrentMask() = MaskRegister{false, 0, mask};
    return Core::Current().AutoSync() ? kept : kUnfinishedCount;
}

template <typename T, typename U>
void RunGatherMask(const CallSite& site, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
                   const AscendC::LocalTensor<U>& pattern, bool reduceMode, uint32_t mask,
                   const AscendC::GatherMaskParams& params, uint64_t& rsvdCnt)
{
    const auto range = GatherRangeOf(site, sizeof(T), reduceMode, mask, params);
    if (!range) return;
    const Operand<T> to("dstLocal", dst, 1, 1);
    const Operand<T> from("src0Local", src0, range->blockStride, range->repeatStride);
    const Operand<U> bits("src1Pattern", pattern, 1, params.src1RepeatStride);
    const uint64_t stride = static_cast<uint64_t>(params.src1RepeatStride) * kBlockBytes;
    const uint64_t patternBytes = (range->perRepeat + 7) / 8;
    Instruction instruction(Pipe::kV, site.call, site.where);
    instruction.CheckAligned(bits.view, kBlockBytes, bits.name);
    std::vector<uint8_t> words;
    for (uint32_t repeat = 0; repeat < range->repeats; ++repeat) {
        const uint8_t* first = instruction.Read(bits.view, repeat * stride, patternBytes);
        words.insert(words.end(), first, first + patternBytes);
    }
    ReadGatherSource(instruction, from, *range);
    CheckGatherOverlap(site, to, from, *range);
    RequireDisjoint(site, to, {0, AtMost(to, *range)}, bits, {0, (range->repeats - 1) * stride + patternBytes});
    const uint64_t kept = Pack(instruction, to, from, *range, [&](uint32_t repeat, uint64_t element) {
        return (words[repeat * patternBytes + element / 8] >> (element % 8) & 1) != 0;
    });
    rsvdCnt = FinishGather<T>(instruction, *range, mask, kept);
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T, typename U, GatherMaskMode mode = defaultGatherMaskMode>
void GatherMask(const LocalTensor<T>& dstLocal, const LocalTensor<T>& src0Local, const LocalTensor<U>& src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& gatherMaskParams, uint64_t& rsvdCnt,
                Where where = Where::Here())
{
    static_assert(ascendc_host::kIsPlain16Or32<T>, "GatherMask: the 910B supports types of 16 and 32 bits");
    static_assert(sizeof(T) == 2 ? std::is_same_v<U, uint16_t> : std::is_same_v<U, uint32_t>,
                  "GatherMask: the pattern is uint16_t for 16-bit elements and uint32_t for 32-bit elements");
    ascendc_host::RunGatherMask(ascendc_host::CallSite{"GatherMask", where}, dstLocal, src0Local, src1Pattern,
                                reduceMode, mask, gatherMaskParams, rsvdCnt);
}

// How many elements the last GatherMask kept; needs a V_S flag since then.
inline int64_t GetGatherMaskRemainCount(Where where = Where::Here())
{
    return static_cast<int64_t>(
        ascendc_host::Core::Current().ReadRegister(ascendc_host::Register::kGatherMaskCount, where));
}

}  // namespace AscendC
