// CompareScalar: one result bit for each element, least significant bit first.
//
// On the 910B the mask argument has no effect, the results lie without gaps whatever the destination's strides say, and
// a call with a count needs whole 256-byte pieces (asc-devkit docs, Compare and Compares).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "library_calls.h"
#include "repeat_params.h"
#include "machine/defects.h"
#include "vector_lanes.h"

namespace ascendc_host {

constexpr uint32_t kCompareChunk = 252;  // repeats; the toolkit splits longer calls there

template <typename T>
bool Holds(AscendC::CMPMODE mode, T a, T b)
{
    switch (mode) {
        case AscendC::CMPMODE::LT:
            return a < b;
        case AscendC::CMPMODE::GT:
            return a > b;
        case AscendC::CMPMODE::EQ:
            return a == b;
        case AscendC::CMPMODE::LE:
            return a <= b;
        case AscendC::CMPMODE::GE:
            return a >= b;
        default:
            return a != b;
    }
}

// The result bits of one repeat.
template <typename T>
void CompareRepeat(AscendC::CMPMODE mode, uint8_t* bits, const LaneCursor<T>& left, uint32_t repeat, T scalar)
{
    constexpr uint32_t lanes = kLanesOf<T>;
    const uint32_t order = Planted(Defect::kReversedMaskBits) ? 7 : 0;
    for (uint32_t byte = 0; byte < lanes / 8; ++byte) {
        uint32_t value = 0;
        for (uint32_t bit = 0; bit < 8; ++bit) {
            const T a = LoadLanes<T, 1>(left.At(repeat, byte * 8 + bit))[0];
            value |= static_cast<uint32_t>(Holds<T>(mode, a, scalar)) << (bit ^ order);
        }
        bits[byte] = static_cast<uint8_t>(value);
    }
}

// Repeats [0, repeats) of one instruction; bounds and contents are checked before anything is computed.
template <typename T, typename U>
void RunCompareInstruction(const CallSite& site, AscendC::CMPMODE mode, const Operand<U>& to, const Operand<T>& left,
                           T scalar, uint32_t repeats)
{
    constexpr uint32_t lanes = kLanesOf<T>;
    const VectorShape shape = CountShape(lanes, static_cast<uint64_t>(lanes) * repeats);
    const Span written{0, static_cast<uint64_t>(repeats) * lanes / 8};
    Instruction instruction(Pipe::kV, site.call, site.where);
    CheckOperand<Access::kRead>(instruction, left, shape);
    instruction.CheckAligned(to.view, kBlockBytes, to.name);
    uint8_t* bits = instruction.Write(to.view, 0, written.end);
    RequireDisjoint(site, to, written, left, SpanOf(left, shape));
    CheckFinite(site, left, shape);
    const LaneCursor<T> cursor(left);
    for (uint32_t repeat = 0; repeat < repeats; ++repeat) {
        CompareRepeat<T>(mode, bits + repeat * (lanes / 8), cursor, repeat, scalar);
    }
    instruction.ComputeCost(repeats, lanes / RateOf<VectorOp::kCompare, sizeof(T), 1>());
    instruction.VectorConflicts(BankConflictCycles(shape, to, left));
}

template <typename T>
void CheckCompareMode(const CallSite& site, AscendC::CMPMODE mode)
{
    if (!std::is_same_v<T, int32_t> || mode == AscendC::CMPMODE::EQ) return;
    site.Report(Check::kParameter, "int32_t with a mode other than CMPMODE::EQ",
                "the 910B compares int32_t for equality only: cast to float, or subtract and test the sign");
}

template <typename T, typename U>
void RunCompareCount(const CallSite& site, AscendC::CMPMODE mode, const AscendC::LocalTensor<U>& dst,
                     const AscendC::LocalTensor<T>& src0, T scalar, uint32_t count)
{
    CheckCompareMode<T>(site, mode);
    if (count * sizeof(T) % kRepeatBytes != 0) {
        site.Report(Check::kParameter,
                    "count is " + std::to_string(count) + ", that is " + std::to_string(count * sizeof(T)) +
                        " bytes; only whole pieces of 256 bytes are compared",
                    "round the count up to 256 bytes, and fill the tail of the tensor beforehand");
    }
    constexpr uint32_t lanes = kLanesOf<T>;
    const uint32_t repeats = count / lanes;
    for (uint32_t done = 0; done < repeats;) {
        const uint32_t piece = repeats <= AscendC::MAX_REPEAT_TIMES ? repeats : std::min(repeats - done, kCompareChunk);
        const Operand<U> to("dstLocal", dst[Index(done * (lanes / 8), site.where)], 1, 1);
        const Operand<T> left("src0Local", src0[Index(done * lanes, site.where)], 1, kBlocksPerRepeat);
        RunCompareInstruction(site, mode, to, left, scalar, piece);
        done += piece;
    }
}

template <typename T, typename U>
void RunCompareRepeats(const CallSite& site, AscendC::CMPMODE mode, const AscendC::LocalTensor<U>& dst,
                       const AscendC::LocalTensor<T>& src0, T scalar, uint8_t repeats,
                       const AscendC::UnaryRepeatParams& strides)
{
    CheckCompareMode<T>(site, mode);
    if (repeats == 0) {
        site.Report(Check::kParameter, "the number of repeats is 0 (a uint8_t wraps at 256)",
                    "give 1 to 255 repeats, and split longer work into several calls");
        return;
    }
    RunCompareInstruction(site, mode, Operand<U>("dstLocal", dst, 1, 1),
                          Operand<T>("src0Local", src0, strides.srcBlkStride, strides.srcRepStride), scalar, repeats);
}

template <typename T, typename U>
constexpr void CheckCompareTypes()
{
    static_assert(kIsOneOf<T, half, float, int32_t>,
                  "CompareScalar: the 910B supports half, float and (EQ only) int32_t");
    static_assert(kIsOneOf<U, int8_t, uint8_t>, "CompareScalar: the result is a tensor of int8_t or uint8_t");
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T, typename U, bool isSetMask = true>
void CompareScalar(const LocalTensor<U>& dstLocal, const LocalTensor<T>& src0Local, const T src1Scalar, CMPMODE cmpMode,
                   const ascendc_host::MaskArgument&, uint8_t repeatTimes, const UnaryRepeatParams& repeatParams,
                   Where where = Where::Here())
{
    ascendc_host::CheckCompareTypes<T, U>();
    ascendc_host::RunCompareRepeats(ascendc_host::CallSite{"CompareScalar", where}, cmpMode, dstLocal, src0Local,
                                    src1Scalar, repeatTimes, repeatParams);
}

template <typename T, typename U>
void CompareScalar(const LocalTensor<U>& dstLocal, const LocalTensor<T>& src0Local, const T src1Scalar, CMPMODE cmpMode,
                   uint32_t calCount, Where where = Where::Here())
{
    ascendc_host::CheckCompareTypes<T, U>();
    ascendc_host::RunCompareCount<T>(ascendc_host::CallSite{"CompareScalar", where}, cmpMode, dstLocal, src0Local,
                                     src1Scalar, calCount);
}

}  // namespace AscendC
