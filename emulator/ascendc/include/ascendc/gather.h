// Gather: dst[i] = the element of src at byte srcBaseAddr + srcOffset[i].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "duplicate.h"
#include "library_calls.h"
#include "vector_lanes.h"

namespace ascendc_host {

// Reads the offsets of the active lanes; an offset that is no multiple of the element is reported.
inline uint32_t GatherOffset(const CallSite& site, const uint8_t* offsets, uint64_t index, uint32_t base,
                             uint32_t elementBytes)
{
    const uint32_t offset = LoadLanes<uint32_t, 1>(offsets + index * sizeof(uint32_t))[0] + base;
    if (offset % elementBytes != 0) {
        site.Report(Check::kAlignment, "byte offset " + std::to_string(offset) + " of element " + std::to_string(index),
                    "give offsets in bytes that are multiples of " + std::to_string(elementBytes));
    }
    return offset;
}

// The offsets lie without gaps: as many for each repeat as it has lanes.
template <typename T>
void RunGather(const CallSite& site, const std::optional<VectorShape>& shape, const AscendC::LocalTensor<T>& dst,
               const AscendC::LocalTensor<T>& src, const AscendC::LocalTensor<uint32_t>& offsets, uint32_t base,
               uint32_t dstRepStride)
{
    if (!shape) return;
    const Operand<T> to("dstLocal", dst, 1, dstRepStride);
    const Operand<T> from("srcLocal", src, 1, 1);
    const Operand<uint32_t> index("srcOffsetLocal", offsets, 1, shape->lanes * sizeof(uint32_t) / kBlockBytes);
    Instruction instruction(Pipe::kV, site.call, site.where);
    instruction.CheckAligned(index.view, kBlockBytes, index.name);
    const uint64_t indexBytes =
        (shape->elements != 0 ? shape->elements : static_cast<uint64_t>(shape->repeats) * shape->lanes) *
        sizeof(uint32_t);
    const uint8_t* positions = instruction.Read(index.view, 0, indexBytes);
    std::vector<T> gathered;
    for (uint32_t repeat = 0; repeat < shape->repeats; ++repeat) {
        for (uint32_t lane = 0; lane < shape->lanes; ++lane) {
            if (shape->BitsOf(repeat).Group(lane, 1) == 0) continue;
            const uint64_t position = static_cast<uint64_t>(repeat) * shape->lanes + lane;
            const uint32_t offset = GatherOffset(site, positions, position, base, sizeof(T));
            gathered.push_back(LoadLanes<T, 1>(instruction.Read(from.view, offset, sizeof(T)))[0]);
        }
    }
    CheckOperand<Access::kWrite>(instruction, to, *shape);
    RequireDisjoint(site, to, SpanOf(to, *shape), index, {0, indexBytes});
    const LaneCursor<T> cursor(to);
    size_t next = 0;
    for (uint32_t repeat = 0; repeat < shape->repeats; ++repeat) {
        for (uint32_t lane = 0; lane < shape->lanes; ++lane) {
            if (shape->BitsOf(repeat).Group(lane, 1) == 0) continue;
            std::memcpy(cursor.At(repeat, lane), &gathered[next++], sizeof(T));
        }
    }
    instruction.ComputeCost(shape->repeats, shape->lanes / RateOf<VectorOp::kGather, sizeof(T), sizeof(T)>());
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T>
void Gather(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<uint32_t>& srcOffsetLocal,
            const uint32_t srcBaseAddr, const uint64_t mask, const uint8_t repeatTimes, const uint16_t dstRepStride,
            Where where = Where::Here())
{
    static_assert(ascendc_host::kIsPlain16Or32<T>, "Gather: the 910B supports types of 16 and 32 bits");
    const ascendc_host::CallSite site{"Gather", where};
    const auto shape = ascendc_host::LevelZeroShape<true>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);
    ascendc_host::RunGather(site, shape, dstLocal, srcLocal, srcOffsetLocal, srcBaseAddr, dstRepStride);
}

template <typename T>
void Gather(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<uint32_t>& srcOffsetLocal,
            const uint32_t srcBaseAddr, const uint64_t mask[], const uint8_t repeatTimes, const uint16_t dstRepStride,
            Where where = Where::Here())
{
    static_assert(ascendc_host::kIsPlain16Or32<T>, "Gather: the 910B supports types of 16 and 32 bits");
    const ascendc_host::CallSite site{"Gather", where};
    const auto shape = ascendc_host::LevelZeroShape<true>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);
    ascendc_host::RunGather(site, shape, dstLocal, srcLocal, srcOffsetLocal, srcBaseAddr, dstRepStride);
}

template <typename T>
void Gather(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<uint32_t>& srcOffsetLocal,
            const uint32_t srcBaseAddr, const uint32_t count, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsPlain16Or32<T>, "Gather: the 910B supports types of 16 and 32 bits");
    const ascendc_host::CallSite site{"Gather", where};
    const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T>, count);
    ascendc_host::RunGather(site, shape, dstLocal, srcLocal, srcOffsetLocal, srcBaseAddr, DEFAULT_REPEAT_STRIDE);
}

}  // namespace AscendC
