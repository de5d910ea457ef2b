// How many cycles a repeat of a vector instruction takes, for the modelled (uncalibrated) times.
//
// Source: asc-devkit docs, "Vector instruction theoretical performance", column of the A2/A3 series, in elements per
// cycle of the vector unit; a repeat of `lanes` elements takes lanes / rate cycles. Calls that the table lists as
// composed of others are charged for those others.
#pragma once

#include <cstdint>

namespace ascendc_host {

enum class VectorOp : uint8_t {
    kArithmetic,  // Add Sub Mul Max Min, Adds Muls Maxs Mins, Abs Relu, Reciprocal, Rsqrt, Not And Or, shifts
    kDivExpLn,    // Div Exp Ln Sqrt
    kMulAddDst,
    kAxpy,
    kCompare,
    kSelect,
    kCast,
    kBlockReduce,
    kPairReduce,
    kWholeReduce,
    kDuplicate,
    kBrcb,  // in destination elements
    kGather,
};

struct VectorRate {
    VectorOp op;
    uint8_t sourceBytes;
    uint8_t destinationBytes;
    double elementsPerCycle;
};

constexpr VectorRate kVectorRates[] = {
    {VectorOp::kArithmetic, 2, 2, 128},
    {VectorOp::kArithmetic, 4, 4, 64},
    {VectorOp::kDivExpLn, 2, 2, 32},
    {VectorOp::kDivExpLn, 4, 4, 32},
    {VectorOp::kMulAddDst, 2, 2, 64},
    {VectorOp::kMulAddDst, 4, 4, 32},
    {VectorOp::kMulAddDst, 2, 4, 32},
    {VectorOp::kAxpy, 2, 2, 128},
    {VectorOp::kAxpy, 4, 4, 64},
    {VectorOp::kAxpy, 2, 4, 64},
    {VectorOp::kCompare, 2, 1, 128},
    {VectorOp::kCompare, 4, 1, 64},
    {VectorOp::kSelect, 2, 2, 128},
    {VectorOp::kSelect, 4, 4, 64},
    {VectorOp::kCast, 1, 2, 128},
    {VectorOp::kCast, 2, 1, 128},
    {VectorOp::kCast, 2, 2, 128},
    {VectorOp::kCast, 2, 4, 64},
    {VectorOp::kCast, 4, 2, 64},
    {VectorOp::kCast, 4, 4, 64},
    {VectorOp::kCast, 4, 8, 32},
    {VectorOp::kCast, 8, 4, 32},
    {VectorOp::kBlockReduce, 2, 2, 128.0 / 7},
    {VectorOp::kBlockReduce, 4, 4, 64},
    {VectorOp::kPairReduce, 2, 2, 128},
    {VectorOp::kPairReduce, 4, 4, 64},
    {VectorOp::kWholeReduce, 2, 2, 128.0 / 7},
    {VectorOp::kWholeReduce, 4, 4, 64.0 / 7},
    {VectorOp::kDuplicate, 2, 2, 128},
    {VectorOp::kDuplicate, 4, 4, 64},
    {VectorOp::kBrcb, 2, 2, 128},
    {VectorOp::kBrcb, 4, 4, 64},
    {VectorOp::kGather, 2, 2, 5},
    {VectorOp::kGather, 4, 4, 5},
};

// The rate of an instruction; 0 when the table has none.
constexpr double ElementsPerCycle(VectorOp op, uint32_t sourceBytes, uint32_t destinationBytes)
{
    for (const VectorRate& rate : kVectorRates) {
        if (rate.op == op && rate.sourceBytes == sourceBytes && rate.destinationBytes == destinationBytes) {
            return rate.elementsPerCycle;
        }
    }
    return 0;
}

template <VectorOp op, uint32_t sourceBytes, uint32_t destinationBytes>
constexpr double RateOf()
{
    constexpr double rate = ElementsPerCycle(op, sourceBytes, destinationBytes);
    static_assert(rate > 0, "the table of vector rates has no entry for these types");
    return rate;
}

}  // namespace ascendc_host
