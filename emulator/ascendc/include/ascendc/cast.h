// Cast: conversions between types, for the pairs and RoundModes that the 910B has.
#pragma once

#include <cstdint>
#include <string>

#include "machine/defects.h"
#include "repeat_params.h"
#include "rounding.h"
#include "vector_lanes.h"

namespace ascendc_host {

template <typename D, typename S, RoundMode mode>
struct CastLane {
    D operator()(S value) const { return Convert<D, S, mode>(value); }
};

// The modes of a pair as bits: bit i allows RoundMode i. 0: no such conversion (asc-devkit docs, Cast, A2 series).
template <typename D, typename S>
constexpr uint32_t CastModes()
{
    constexpr uint32_t none = 1u << static_cast<uint32_t>(RoundMode::CAST_NONE);
    constexpr uint32_t five = 0x3e;  // RINT FLOOR CEIL ROUND TRUNC
    constexpr uint32_t odd = 1u << static_cast<uint32_t>(RoundMode::CAST_ODD);
    if constexpr (std::is_same_v<S, half>) {
        if constexpr (std::is_same_v<D, float>) return none;
        if constexpr (kIsOneOf<D, int8_t, uint8_t>) return five | none;
        if constexpr (kIsOneOf<D, int16_t, int32_t>) return five;
    } else if constexpr (std::is_same_v<S, bfloat16_t>) {
        if constexpr (std::is_same_v<D, float>) return none;
        if constexpr (std::is_same_v<D, int32_t>) return five;
    } else if constexpr (std::is_same_v<S, float>) {
        if constexpr (std::is_same_v<D, half>) return five | none | odd;
        if constexpr (kIsOneOf<D, bfloat16_t, int16_t, int32_t, int64_t, float>) return five;
    } else if constexpr (std::is_same_v<S, int32_t>) {
        if constexpr (std::is_same_v<D, float>) return five | none;
        if constexpr (kIsOneOf<D, int16_t, int64_t>) return none;
    } else if constexpr (std::is_same_v<S, int16_t>) {
        if constexpr (std::is_same_v<D, half>) return five | none;
        if constexpr (std::is_same_v<D, float>) return none;
    } else if constexpr (std::is_same_v<S, int64_t>) {
        if constexpr (std::is_same_v<D, float>) return five;
        if constexpr (std::is_same_v<D, int32_t>) return none;
    } else if constexpr (kIsOneOf<S, int8_t, uint8_t>) {
        if constexpr (std::is_same_v<D, half>) return none;
    }
    return 0;
}

template <typename D, typename S>
constexpr void CheckCastTypes()
{
    static_assert(!(std::is_same_v<D, half> && std::is_same_v<S, int32_t>),
                  "Cast: int32_t to half goes through SetDeqScale, which the model does not have; cast to float first");
    static_assert(CastModes<D, S>() != 0, "Cast: the 910B has no conversion between these types");
}

template <typename D, typename S, RoundMode mode>
void RunCastMode(const CallSite& site, const VectorShape& shape, const Operand<D>& to, const Operand<S>& from)
{
    if constexpr ((CastModes<D, S>() >> static_cast<uint32_t>(mode) & 1) != 0) {
        RunElementwise<VectorOp::kCast>(site, shape, CastLane<D, S, mode>(), to, from);
    } else {
        site.Report(
            Check::kParameter,
            "RoundMode " + std::to_string(static_cast<uint32_t>(mode)) + " does not exist for this pair of types",
            "use CAST_NONE where no rounding is needed, and CAST_RINT, FLOOR, CEIL, ROUND or TRUNC elsewhere");
    }
}

template <typename D, typename S>
void RunCast(const CallSite& site, const std::optional<VectorShape>& shape, const AscendC::LocalTensor<D>& dst,
             const AscendC::LocalTensor<S>& src, RoundMode mode, const AscendC::UnaryRepeatParams& strides)
{
    if (!shape) return;
    const Operand<D> to("dstLocal", dst, strides.dstBlkStride, strides.dstRepStride);
    const bool dense = std::is_same_v<S, int8_t> && Planted(Defect::kInt8StridesIgnored);
    Operand<S> from("srcLocal", src, dense ? 1 : strides.srcBlkStride, strides.srcRepStride);
    from.mayNarrow = sizeof(D) < sizeof(S);
    switch (mode) {
        case RoundMode::CAST_NONE:
            return RunCastMode<D, S, RoundMode::CAST_NONE>(site, *shape, to, from);
        case RoundMode::CAST_RINT:
            return RunCastMode<D, S, RoundMode::CAST_RINT>(site, *shape, to, from);
        case RoundMode::CAST_FLOOR:
            return RunCastMode<D, S, RoundMode::CAST_FLOOR>(site, *shape, to, from);
        case RoundMode::CAST_CEIL:
            return RunCastMode<D, S, RoundMode::CAST_CEIL>(site, *shape, to, from);
        case RoundMode::CAST_ROUND:
            return RunCastMode<D, S, RoundMode::CAST_ROUND>(site, *shape, to, from);
        case RoundMode::CAST_TRUNC:
            return RunCastMode<D, S, RoundMode::CAST_TRUNC>(site, *shape, to, from);
        case RoundMode::CAST_ODD:
            return RunCastMode<D, S, RoundMode::CAST_ODD>(site, *shape, to, from);
    }
}

// Adjacent repeats: 8 blocks of the wider type, fewer of the narrower one.
template <typename D, typename S>
AscendC::UnaryRepeatParams DenseCastStrides()
{
    constexpr uint32_t lanes = kLanesOf<D, S>;
    return {1, 1, lanes * sizeof(D) / kBlockBytes, lanes * sizeof(S) / kBlockBytes};
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T1, typename T2, bool isSetMask = true>
void Cast(const LocalTensor<T1>& dstLocal, const LocalTensor<T2>& srcLocal, const RoundMode& round_mode,
          const ascendc_host::MaskArgument& mask, const uint8_t repeatTimes, const UnaryRepeatParams& repeatParams,
          Where where = Where::Here())
{
    ascendc_host::CheckCastTypes<T1, T2>();
    const ascendc_host::CallSite site{"Cast", where};
    const auto shape = ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T1, T2>, mask, repeatTimes);
    ascendc_host::RunCast(site, shape, dstLocal, srcLocal, round_mode, repeatParams);
}

template <typename T1, typename T2>
void Cast(const LocalTensor<T1>& dstLocal, const LocalTensor<T2>& srcLocal, const RoundMode& round_mode,
          const uint32_t calCount, Where where = Where::Here())
{
    ascendc_host::CheckCastTypes<T1, T2>();
    const ascendc_host::CallSite site{"Cast", where};
    const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T1, T2>, calCount);
    ascendc_host::RunCast(site, shape, dstLocal, srcLocal, round_mode, ascendc_host::DenseCastStrides<T1, T2>());
}

}  // namespace AscendC
