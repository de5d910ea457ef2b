// Duplicate (a scalar into every lane) and Brcb (8 elements into 8 blocks).
#pragma once

#include <cstdint>

#include "library_calls.h"
#include "repeat_params.h"
#include "vector_lanes.h"

namespace ascendc_host {

template <typename T>
constexpr bool kIsPlain16Or32 = kIsOneOf<T, half, bfloat16_t, int16_t, uint16_t, int32_t, uint32_t, float>;

template <typename T>
struct ConstantLane {
    T value;
    T operator()() const { return value; }
};

template <typename T>
void RunDuplicate(const CallSite& site, const std::optional<VectorShape>& shape, const AscendC::LocalTensor<T>& dst,
                  const T& value, uint32_t blockStride, uint32_t repeatStride)
{
    if (!shape) return;
    RunElementwise<VectorOp::kDuplicate>(site, *shape, ConstantLane<T>{value},
                                         Operand<T>("dstLocal", dst, blockStride, repeatStride));
}

// Every element of the source, 8 of them in a repeat, fills one block of the destination.
template <typename T>
void RunBrcb(const CallSite& site, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
             uint8_t repeats, const AscendC::BrcbRepeatParams& strides)
{
    CurrentMask() = MaskRegister{CurrentMask().counter, ~0ull, ~0ull};
    if (repeats == 0) {
        site.Report(Check::kParameter, "the number of repeats is 0 (a uint8_t wraps at 256)",
                    "give 1 to 255 repeats, and split longer work into several calls");
        return;
    }
    VectorShape shape = CountShape(kLanesOf<T>, static_cast<uint64_t>(kLanesOf<T>) * repeats);
    const Operand<T> to("dstLocal", dst, strides.dstBlkStride, strides.dstRepStride);
    const Operand<T> from("src0Local", src, 1, 1);
    const uint64_t sourceBytes = static_cast<uint64_t>(repeats) * kBlocksPerRepeat * sizeof(T);
    Instruction instruction(Pipe::kV, site.call, site.where);
    CheckDestinationStride(site, to);
    instruction.CheckAligned(from.view, kBlockBytes, from.name);
    const uint8_t* source = instruction.Read(from.view, 0, sourceBytes);
    CheckOperand<Access::kWrite>(instruction, to, shape);
    RequireDisjoint(site, to, SpanOf(to, shape), from, {0, sourceBytes});
    const LaneCursor<T> cursor(to);
    for (uint32_t block = 0; block < repeats * kBlocksPerRepeat; ++block) {
        std::array<T, kBlockBytes / sizeof(T)> filled;
        filled.fill(LoadLanes<T, 1>(source + block * sizeof(T))[0]);
        uint8_t* target = cursor.At(block / kBlocksPerRepeat, block % kBlocksPerRepeat * (kBlockBytes / sizeof(T)));
        std::memcpy(target, filled.data(), sizeof(filled));
    }
    instruction.ComputeCost(repeats, kLanesOf<T> / RateOf<VectorOp::kBrcb, sizeof(T), sizeof(T)>());
    instruction.VectorConflicts(BankConflictCycles(shape, to));
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dstLocal, const T& scalarValue, const ascendc_host::MaskArgument& mask,
               const uint8_t repeatTimes, const uint16_t dstBlockStride, const uint8_t dstRepeatStride,
               Where where = Where::Here())
{
    static_assert(ascendc_host::kIsPlain16Or32<T>, "Duplicate: the 910B supports types of 16 and 32 bits");
    const ascendc_host::CallSite site{"Duplicate", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);
    ascendc_host::RunDuplicate(site, shape, dstLocal, scalarValue, dstBlockStride, dstRepeatStride);
}

template <typename T>
void Duplicate(const LocalTensor<T>& dstLocal, const T& scalarValue, const int32_t& calCount,
               Where where = Where::Here())
{
    static_assert(ascendc_host::kIsPlain16Or32<T>, "Duplicate: the 910B supports types of 16 and 32 bits");
    const ascendc_host::CallSite site{"Duplicate", where};
    const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T>, calCount);
    ascendc_host::RunDuplicate(site, shape, dstLocal, scalarValue, DEFAULT_BLK_STRIDE, DEFAULT_REPEAT_STRIDE);
}

template <typename T>
void Brcb(const LocalTensor<T>& dstLocal, const LocalTensor<T>& src0Local, const uint8_t repeatTimes,
          const BrcbRepeatParams& repeatParams, Where where = Where::Here())
{
    static_assert(ascendc_host::kIsPlain16Or32<T>, "Brcb: the 910B supports types of 16 and 32 bits");
    ascendc_host::RunBrcb(ascendc_host::CallSite{"Brcb", where}, dstLocal, src0Local, repeatTimes, repeatParams);
}

}  // namespace AscendC
