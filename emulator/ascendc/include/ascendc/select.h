// Select: takes each lane from src0 where the bit of selMask is 1, from src1 where it is 0.
//
// Bits are least significant first. The set-up of the selection costs two further vector instructions: one loads the
// mask register, one writes the scalar or the mask's address to the reserved end of the Unified Buffer.
#pragma once

#include <cstdint>
#include <string>

#include "library_calls.h"
#include "machine/defects.h"
#include "repeat_params.h"
#include "vector_lanes.h"

namespace ascendc_host {

template <typename T>
struct SelectSource {
    const Operand<T>* tensor;  // null: the scalar
    T scalar;
};

inline void ChargeSelectSetup(const CallSite& site)
{
    for (int i = 0; i < 2; ++i) {
        Instruction instruction(Pipe::kV, site.call, site.where);
        instruction.ComputeCost(1, 1);
    }
}

// Bytes of selMask that the call reads.
inline uint64_t SelectMaskBytes(const VectorShape& shape)
{
    if (shape.elements != 0) return (shape.elements + 7) / 8;
    return static_cast<uint64_t>(shape.repeats) * shape.lanes / 8;
}

template <typename T>
void SelectLanes(const VectorShape& shape, const uint8_t* bits, const Operand<T>& to, Operand<T> first,
                 const SelectSource<T>& second)
{
    if (Planted(Defect::kSelectStridesIgnored)) {
        first.blockStride = 1;
        first.repeatStride = kBlocksPerRepeat;
    }
    const LaneCursor<T> target(to);
    const LaneCursor<T> one(first);
    const LaneCursor<T> zero(second.tensor == nullptr ? first : *second.tensor);
    for (uint32_t repeat = 0; repeat < shape.repeats; ++repeat) {
        const LaneBits& active = shape.BitsOf(repeat);
        const uint64_t base = static_cast<uint64_t>(repeat) * shape.lanes;
        for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
            if (active.Group(lane, 1) == 0) continue;
            const bool fromFirst = (bits[(base + lane) / 8] >> ((base + lane) % 8) & 1) != 0;
            T value = second.scalar;
            if (fromFirst) {
                value = LoadLanes<T, 1>(one.At(repeat, lane))[0];
            } else if (second.tensor != nullptr) {
                value = LoadLanes<T, 1>(zero.At(repeat, lane))[0];
            }
            std::memcpy(target.At(repeat, lane), &value, sizeof(T));
        }
    }
}

template <typename T, typename U>
void RunSelect(const CallSite& site, const std::optional<VectorShape>& shape, const Operand<T>& to,
               const AscendC::LocalTensor<U>& selMask, const Operand<T>& first, const SelectSource<T>& second)
{
    if (!shape) return;
    ChargeSelectSetup(site);
    const Operand<U> mask("selMask", selMask, 1, 1);
    const uint64_t maskBytes = SelectMaskBytes(*shape);
    Instruction instruction(Pipe::kV, site.call, site.where);
    CheckDestinationStride(site, to);
    instruction.CheckAligned(mask.view, kBlockBytes, mask.name);
    const uint8_t* bits = instruction.Read(mask.view, 0, maskBytes);
    CheckOperand<Access::kRead>(instruction, first, *shape);
    if (second.tensor != nullptr) CheckOperand<Access::kRead>(instruction, *second.tensor, *shape);
    CheckOperand<Access::kWrite>(instruction, to, *shape);
    RequireDisjoint(site, to, SpanOf(to, *shape), mask, {0, maskBytes});
    OverlapCheck(site, to, first, *shape).Run();
    if (second.tensor != nullptr) OverlapCheck(site, to, *second.tensor, *shape).Run();
    SelectLanes(*shape, bits, to, first, second);
    instruction.ComputeCost(shape->repeats, shape->lanes / RateOf<VectorOp::kSelect, sizeof(T), sizeof(T)>());
    instruction.VectorConflicts(second.tensor == nullptr ? BankConflictCycles(*shape, to, first)
                                                         : BankConflictCycles(*shape, to, first, *second.tensor));
}

inline bool CheckSelectMode(const CallSite& site, AscendC::SELMODE mode, bool scalar)
{
    using AscendC::SELMODE;
    if (mode == (scalar ? SELMODE::VSEL_TENSOR_SCALAR_MODE : SELMODE::VSEL_TENSOR_TENSOR_MODE)) return true;
    site.Report(Check::kParameter,
                std::string("src1 is a ") + (scalar ? "scalar" : "tensor") + ", which the SELMODE does not allow",
                "use VSEL_TENSOR_SCALAR_MODE with a scalar, VSEL_TENSOR_TENSOR_MODE with a tensor; this model has no "
                "other mode");
    return false;
}

template <typename T, typename U>
void RunSelectTensors(const CallSite& site, const std::optional<VectorShape>& shape, AscendC::SELMODE mode,
                      const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& selMask,
                      const AscendC::LocalTensor<T>& src0, const AscendC::LocalTensor<T>& src1,
                      const AscendC::BinaryRepeatParams& strides)
{
    if (!CheckSelectMode(site, mode, false)) return;
    const Operand<T> second("src1Local", src1, strides.src1BlkStride, strides.src1RepStride);
    RunSelect(site, shape, Operand<T>("dstLocal", dst, strides.dstBlkStride, strides.dstRepStride), selMask,
              Operand<T>("src0Local", src0, strides.src0BlkStride, strides.src0RepStride),
              SelectSource<T>{&second, T{}});
}

template <typename T, typename U>
void RunSelectScalar(const CallSite& site, const std::optional<VectorShape>& shape, AscendC::SELMODE mode,
                     const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& selMask,
                     const AscendC::LocalTensor<T>& src0, T src1, const AscendC::BinaryRepeatParams& strides)
{
    if (!CheckSelectMode(site, mode, true)) return;
    RunSelect(site, shape, Operand<T>("dstLocal", dst, strides.dstBlkStride, strides.dstRepStride), selMask,
              Operand<T>("src0Local", src0, strides.src0BlkStride, strides.src0RepStride),
              SelectSource<T>{nullptr, src1});
}

template <typename T, typename U>
constexpr void CheckSelectTypes()
{
    static_assert(kIsOneOf<T, half, float>, "Select: the 910B supports half and float");
    static_assert(kIsOneOf<U, uint8_t, uint16_t, uint32_t, uint64_t>, "Select: selMask is of an unsigned type");
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dstLocal, const LocalTensor<U>& selMask, const LocalTensor<T>& src0Local,
            const LocalTensor<T>& src1Local, SELMODE selMode, const ascendc_host::MaskArgument& mask,
            uint8_t repeatTimes, const BinaryRepeatParams& repeatParams, Where where = Where::Here())
{
    ascendc_host::CheckSelectTypes<T, U>();
    const ascendc_host::CallSite site{"Select", where};
    const auto shape = ascendc_host::LevelZeroShape<true>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);
    ascendc_host::RunSelectTensors(site, shape, selMode, dstLocal, selMask, src0Local, src1Local, repeatParams);
}

template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dstLocal, const LocalTensor<U>& selMask, const LocalTensor<T>& src0Local, T src1Local,
            SELMODE selMode, const ascendc_host::MaskArgument& mask, uint8_t repeatTimes,
            const BinaryRepeatParams& repeatParams, Where where = Where::Here())
{
    ascendc_host::CheckSelectTypes<T, U>();
    const ascendc_host::CallSite site{"Select", where};
    const auto shape = ascendc_host::LevelZeroShape<true>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);
    ascendc_host::RunSelectScalar(site, shape, selMode, dstLocal, selMask, src0Local, src1Local, repeatParams);
}

template <typename T, typename U>
void Select(const LocalTensor<T>& dstLocal, const LocalTensor<U>& selMask, const LocalTensor<T>& src0Local, T src1Local,
            SELMODE selMode, uint32_t calCount, Where where = Where::Here())
{
    ascendc_host::CheckSelectTypes<T, U>();
    const ascendc_host::CallSite site{"Select", where};
    const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T>, calCount);
    ascendc_host::RunSelectScalar(site, shape, selMode, dstLocal, selMask, src0Local, src1Local, BinaryRepeatParams());
}

}  // namespace AscendC
