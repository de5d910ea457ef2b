// Gather: dst[i] = the element of src at byte srcBaseAddr + srcOffset[i].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "duplicate.h"
#include "library_calls.h"
#include "vector_lanes.h"

namespace ascendc_host {

// An offset that is no multiple of the element is reported.
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

template <typename T>
void RunGather(const CallSite& site, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
               const AscendC::LocalTensor<uint32_t>& offsets, uint32_t base, uint32_t count)
{
    const auto shape = LevelTwoShape(site, kLanesOf<T>, count);
    if (!shape) return;
    const Operand<T> to("dstLocal", dst, 1, kBlocksPerRepeat);
    const Operand<T> from("srcLocal", src, 1, 1);
    const Operand<uint32_t> index("srcOffsetLocal", offsets, 1, kBlocksPerRepeat);
    const uint64_t indexBytes = count * sizeof(uint32_t);
    Instruction instruction(Pipe::kV, site.call, site.where);
    instruction.CheckAligned(index.view, kBlockBytes, index.name);
    const uint8_t* positions = instruction.Read(index.view, 0, indexBytes);
    std::vector<T> gathered;
    for (uint32_t element = 0; element < count; ++element) {
        const uint32_t offset = GatherOffset(site, positions, element, base, sizeof(T));
        gathered.push_back(LoadLanes<T, 1>(instruction.Read(from.view, offset, sizeof(T)))[0]);
    }
    CheckOperand<Access::kWrite>(instruction, to, *shape);
    RequireDisjoint(site, to, SpanOf(to, *shape), index, {0, indexBytes});
    std::memcpy(Core::Current().Local(to.view.offset), gathered.data(), gathered.size() * sizeof(T));
    instruction.ComputeCost(shape->repeats, shape->lanes / RateOf<VectorOp::kGather, sizeof(T), sizeof(T)>());
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T>
void Gather(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LocalTensor<uint32_t>& srcOffsetLocal,
            const uint32_t srcBaseAddr, const uint32_t count, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsPlain16Or32<T>, "Gather: the 910B supports types of 16 and 32 bits");
    ascendc_host::RunGather(ascendc_host::CallSite{"Gather", where}, dstLocal, srcLocal, srcOffsetLocal, srcBaseAddr,
                            count);
}

}  // namespace AscendC
