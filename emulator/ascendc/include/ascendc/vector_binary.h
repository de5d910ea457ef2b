// dst = src0 op src1: Add Sub Mul Div Max Min And Or.
#pragma once

#include <cstdint>
#include <type_traits>

#include "repeat_params.h"
#include "vector_lanes.h"

namespace ascendc_host {

// Integers wrap, as the host model's choice: the documents do not say what the device does on overflow.
template <typename T, typename F>
T Wrapping(T a, T b, F f)
{
    using Unsigned = std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>;
    return static_cast<T>(f(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
}

// half computes in float and rounds once: float has more than twice the bits, so +, -, * and / are correctly rounded.
template <typename T, typename F>
T Arithmetic(T a, T b, F f)
{
    if constexpr (std::is_integral_v<T>) {
        return Wrapping(a, b, f);
    } else {
        return static_cast<T>(f(static_cast<float>(a), static_cast<float>(b)));
    }
}

struct AddLane {
    template <typename T>
    T operator()(T a, T b) const
    {
        return Arithmetic(a, b, [](auto x, auto y) { return x + y; });
    }
};

struct SubLane {
    template <typename T>
    T operator()(T a, T b) const
    {
        return Arithmetic(a, b, [](auto x, auto y) { return x - y; });
    }
};

struct MulLane {
    template <typename T>
    T operator()(T a, T b) const
    {
        return Arithmetic(a, b, [](auto x, auto y) { return x * y; });
    }
};

struct DivLane {
    template <typename T>
    T operator()(T a, T b) const
    {
        return static_cast<T>(static_cast<float>(a) / static_cast<float>(b));
    }
};

// What Max and Min make of NaN is not documented.
struct MaxLane {
    template <typename T>
    T operator()(T a, T b) const
    {
        return a > b ? a : b;
    }
};

struct MinLane {
    template <typename T>
    T operator()(T a, T b) const
    {
        return a < b ? a : b;
    }
};

struct AndLane {
    template <typename T>
    T operator()(T a, T b) const
    {
        return static_cast<T>(a & b);
    }
};

struct OrLane {
    template <typename T>
    T operator()(T a, T b) const
    {
        return static_cast<T>(a | b);
    }
};

// mayCarry: the documents let dst of one repeat be src1 of a later one when a repeat stride of the two is 0.
template <VectorOp op, bool mayCarry, typename F, typename T>
void RunBinary(const CallSite& site, const std::optional<VectorShape>& shape, F f, const AscendC::LocalTensor<T>& dst,
               const AscendC::LocalTensor<T>& src0, const AscendC::LocalTensor<T>& src1,
               const AscendC::BinaryRepeatParams& strides)
{
    if (!shape) return;
    Operand<T> second("src1Local", src1, strides.src1BlkStride, strides.src1RepStride);
    second.mayCarry =
        mayCarry && !std::is_same_v<T, int16_t> && (strides.dstRepStride == 0 || strides.src1RepStride == 0);
    RunElementwise<op>(site, *shape, f, Operand<T>("dstLocal", dst, strides.dstBlkStride, strides.dstRepStride),
                       Operand<T>("src0Local", src0, strides.src0BlkStride, strides.src0RepStride), second);
}

}  // namespace ascendc_host

namespace AscendC {

// The two forms of a binary instruction. A macro, because a template cannot make function names.
#define ASCENDC_HOST_BINARY(Name, op, mayCarry, Lane, message, ...)                                               \
    template <typename T, bool isSetMask = true>                                                                  \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& src0Local, const LocalTensor<T>& src1Local,   \
              const ascendc_host::MaskArgument& mask, const uint8_t repeatTimes,                                  \
              const BinaryRepeatParams& repeatParams, Where where = Where::Here())                                \
    {                                                                                                             \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                           \
        const ascendc_host::CallSite site{#Name, where};                                                          \
        const auto shape =                                                                                        \
            ascendc_host::LevelZeroShape<isSetMask>(site, ascendc_host::kLanesOf<T>, mask, repeatTimes);          \
        ascendc_host::RunBinary<op, mayCarry>(site, shape, Lane(), dstLocal, src0Local, src1Local, repeatParams); \
    }                                                                                                             \
    template <typename T>                                                                                         \
    void Name(const LocalTensor<T>& dstLocal, const LocalTensor<T>& src0Local, const LocalTensor<T>& src1Local,   \
              const int32_t& calCount, Where where = Where::Here())                                               \
    {                                                                                                             \
        static_assert(ascendc_host::kIsOneOf<T, __VA_ARGS__>, message);                                           \
        const ascendc_host::CallSite site{#Name, where};                                                          \
        const auto shape = ascendc_host::LevelTwoShape(site, ascendc_host::kLanesOf<T>, calCount);                \
        ascendc_host::RunBinary<op, mayCarry>(site, shape, Lane(), dstLocal, src0Local, src1Local,                \
                                              BinaryRepeatParams());                                              \
    }

ASCENDC_HOST_BINARY(Add, ascendc_host::VectorOp::kArithmetic, true, ascendc_host::AddLane,
                    "Add: the 910B supports half, float, int16_t and int32_t", half, float, int16_t, int32_t)
ASCENDC_HOST_BINARY(Sub, ascendc_host::VectorOp::kArithmetic, true, ascendc_host::SubLane,
                    "Sub: the 910B supports half, float, int16_t and int32_t", half, float, int16_t, int32_t)
ASCENDC_HOST_BINARY(Mul, ascendc_host::VectorOp::kArithmetic, true, ascendc_host::MulLane,
                    "Mul: the 910B supports half, float, int16_t and int32_t", half, float, int16_t, int32_t)
ASCENDC_HOST_BINARY(Div, ascendc_host::VectorOp::kDivExpLn, false, ascendc_host::DivLane,
                    "Div: the 910B supports half and float", half, float)
ASCENDC_HOST_BINARY(Max, ascendc_host::VectorOp::kArithmetic, true, ascendc_host::MaxLane,
                    "Max: the 910B supports half, float, int16_t and int32_t", half, float, int16_t, int32_t)
ASCENDC_HOST_BINARY(Min, ascendc_host::VectorOp::kArithmetic, true, ascendc_host::MinLane,
                    "Min: the 910B supports half, float, int16_t and int32_t", half, float, int16_t, int32_t)
ASCENDC_HOST_BINARY(And, ascendc_host::VectorOp::kArithmetic, false, ascendc_host::AndLane,
                    "And: the 910B supports int16_t and uint16_t", int16_t, uint16_t)
ASCENDC_HOST_BINARY(Or, ascendc_host::VectorOp::kArithmetic, false, ascendc_host::OrLane,
                    "Or: the 910B supports int16_t and uint16_t", int16_t, uint16_t)

#undef ASCENDC_HOST_BINARY

}  // namespace AscendC
