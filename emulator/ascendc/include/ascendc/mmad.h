// Mmad: C = A * B or C += A * B, half or bfloat16_t into float, int8_t into int32_t.
//
// A fractal of A or B has 512 bytes: 16 rows or columns of 32 bytes, that is of 16 or 32 elements. A lies in L0A as Zz:
// fractals row by row, their rows inside. B lies in L0B as Zn: fractals row by row, their columns inside. C lies in L0C
// as Nz: fractals of 16 x 16 column by column, rows of 16 numbers inside.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cube_params.h"
#include "library_calls.h"
#include "mmad_results.h"
#include "operand_checks.h"
#include "machine/defects.h"
#include "tensor.h"
#include "vector_lanes.h"
#include "vector_shape.h"

namespace ascendc_host {

constexpr uint32_t kCubeEdge = 16;
constexpr uint32_t kCubeFractalBytes = kCubeEdge * kBlockBytes;  // of A and B
constexpr uint32_t kResultRowBytes = kCubeEdge * sizeof(float);  // of a fractal of C, of int32_t too
constexpr uint32_t kResultAlignment = kCubeEdge * kResultRowBytes;
// asc-devkit, Mmad: from so many fractals of C on the cube orders the Mmad that add to it by itself.
constexpr uint32_t kSelfOrderedFractals = 10;

// What elements are multiplied and added as, and how many of them stand side by side in a fractal over k.
template <typename T>
struct CubeType {
    using Result = float;
    using Number = float;
    static constexpr uint32_t kDepth = kBlockBytes / sizeof(T);
};
template <>
struct CubeType<int8_t> {
    using Result = int32_t;
    using Number = uint32_t;  // wraps
    static constexpr uint32_t kDepth = kBlockBytes;
};

template <typename T>
using CubeRow = std::array<typename CubeType<T>::Number, CubeType<T>::kDepth>;
template <typename T>
using ResultRow = std::array<typename CubeType<T>::Number, kCubeEdge>;
template <typename T>
using CubeFractal = std::array<ResultRow<T>, CubeType<T>::kDepth>;

constexpr uint32_t CubeBlocks(uint32_t length) { return (length + kCubeEdge - 1) / kCubeEdge; }

struct MmadShape {
    uint32_t m, n, k;
    uint32_t depth;  // of a fractal

    uint32_t DepthBlocks() const { return (k + depth - 1) / depth; }

    // With m = 1 the hardware takes A for a vector whose elements lie one behind the other (asc-devkit, GEMV).
    uint64_t LeftRow(uint32_t row, uint32_t kBlock) const
    {
        if (m == 1) return static_cast<uint64_t>(kBlock) * kBlockBytes;
        const uint64_t fractal = static_cast<uint64_t>(row / kCubeEdge) * DepthBlocks() + kBlock;
        return fractal * kCubeFractalBytes + row % kCubeEdge * kBlockBytes;
    }
    uint64_t RightColumn(uint32_t column, uint32_t kBlock) const
    {
        const uint64_t fractal = static_cast<uint64_t>(kBlock) * CubeBlocks(n) + column / kCubeEdge;
        return fractal * kCubeFractalBytes + column % kCubeEdge * kBlockBytes;
    }
    uint64_t ResultRow(uint32_t row, uint32_t nBlock) const
    {
        return (static_cast<uint64_t>(nBlock) * CubeBlocks(m) * kCubeEdge + row) * kResultRowBytes;
    }
    uint32_t Depth(uint32_t kBlock) const { return std::min(depth, k - kBlock * depth); }
    uint32_t Width(uint32_t nBlock) const { return std::min(kCubeEdge, n - nBlock * kCubeEdge); }
};

inline float ToNumber(const half& value) { return value; }
inline float ToNumber(const bfloat16_t& value) { return Bfloat16BitsToFloat(value.bits); }
inline uint32_t ToNumber(int8_t value) { return static_cast<uint32_t>(static_cast<int32_t>(value)); }

// `count` elements at a place of L0A or L0B, zeros behind them.
template <typename T>
CubeRow<T> LoadCubeRow(Instruction& instruction, const LocalView& view, uint64_t offset, uint32_t count)
{
    std::array<T, CubeType<T>::kDepth> raw = {};
    std::memcpy(raw.data(), instruction.Read(view, offset, count * sizeof(T)), count * sizeof(T));
    CubeRow<T> row;
    for (uint32_t i = 0; i < row.size(); ++i) row[i] = ToNumber(raw[i]);
    if (Planted(Defect::kMmadDropsNan)) {
        for (auto& number : row) number = number == number ? number : 0;
    }
    return row;
}

template <typename T>
std::vector<CubeRow<T>> LoadLeft(Instruction& instruction, const LocalView& view, const MmadShape& shape)
{
    std::vector<CubeRow<T>> left;
    for (uint32_t row = 0; row < shape.m; ++row) {
        for (uint32_t kBlock = 0; kBlock < shape.DepthBlocks(); ++kBlock) {
            left.push_back(LoadCubeRow<T>(instruction, view, shape.LeftRow(row, kBlock), shape.Depth(kBlock)));
        }
    }
    return left;
}

// Fractals of B with its rows inside, so that the inner loops run over columns.
template <typename T>
std::vector<CubeFractal<T>> LoadRight(Instruction& instruction, const LocalView& view, const MmadShape& shape)
{
    std::vector<CubeFractal<T>> right(shape.DepthBlocks() * CubeBlocks(shape.n));
    for (uint32_t kBlock = 0; kBlock < shape.DepthBlocks(); ++kBlock) {
        for (uint32_t column = 0; column < shape.n; ++column) {
            const CubeRow<T> loaded =
                LoadCubeRow<T>(instruction, view, shape.RightColumn(column, kBlock), shape.Depth(kBlock));
            CubeFractal<T>& fractal = right[kBlock * CubeBlocks(shape.n) + column / kCubeEdge];
            for (uint32_t i = 0; i < loaded.size(); ++i) fractal[i][column % kCubeEdge] = loaded[i];
        }
    }
    return right;
}

// Adds a row times a fractal: the products of an element as a binary tree, then onto the sum.
template <typename T>
void AddProducts(ResultRow<T>& sum, const CubeRow<T>& left, const CubeFractal<T>& right)
{
    CubeFractal<T> products;
    for (uint32_t i = 0; i < left.size(); ++i) {
        for (uint32_t column = 0; column < kCubeEdge; ++column) products[i][column] = left[i] * right[i][column];
    }
    for (uint32_t pairs = CubeType<T>::kDepth / 2; pairs > 0; pairs /= 2) {
        for (uint32_t i = 0; i < pairs; ++i) {
            for (uint32_t column = 0; column < kCubeEdge; ++column) products[i][column] += products[i + pairs][column];
        }
    }
    for (uint32_t column = 0; column < kCubeEdge; ++column) sum[column] += products[0][column];
}

// The rest of the fractals of C, behind row m and column n, holds nothing that a kernel may use.
inline void ForgetPadding(Instruction& instruction, const LocalView& view, const MmadShape& shape)
{
    const uint32_t lastBlock = CubeBlocks(shape.n) - 1;
    const uint64_t lastBytes = shape.Width(lastBlock) * sizeof(float);
    const uint64_t rest = static_cast<uint64_t>(CubeBlocks(shape.m) * kCubeEdge - shape.m) * kResultRowBytes;
    for (uint32_t nBlock = 0; rest > 0 && nBlock <= lastBlock; ++nBlock) {
        instruction.WriteUndefined(view, shape.ResultRow(shape.m, nBlock), rest);
    }
    for (uint32_t row = 0; lastBytes < kResultRowBytes && row < shape.m; ++row) {
        instruction.WriteUndefined(view, shape.ResultRow(row, lastBlock) + lastBytes, kResultRowBytes - lastBytes);
    }
}

template <typename T>
void Multiply(Instruction& instruction, const LocalView& result, const LocalView& left, const LocalView& right,
              const MmadShape& shape, bool accumulate)
{
    const std::vector<CubeRow<T>> a = LoadLeft<T>(instruction, left, shape);
    const std::vector<CubeFractal<T>> b = LoadRight<T>(instruction, right, shape);
    const uint32_t nBlocks = CubeBlocks(shape.n);
    const uint32_t kBlocks = shape.DepthBlocks();
    for (uint32_t row = 0; row < shape.m; ++row) {
        for (uint32_t nBlock = 0; nBlock < nBlocks; ++nBlock) {
            const uint64_t offset = shape.ResultRow(row, nBlock);
            const uint64_t bytes = shape.Width(nBlock) * sizeof(float);
            ResultRow<T> sum = {};
            if (accumulate) std::memcpy(sum.data(), instruction.Read(result, offset, bytes), bytes);
            for (uint32_t kBlock = 0; kBlock < kBlocks; ++kBlock) {
                AddProducts<T>(sum, a[row * kBlocks + kBlock], b[kBlock * nBlocks + nBlock]);
            }
            if constexpr (std::is_same_v<T, int8_t>) {
                const bool narrow = Planted(Defect::kInt8SumsIn16Bits);
                for (uint32_t& number : sum) number = narrow ? static_cast<int16_t>(number) : number;
            }
            std::memcpy(instruction.Write(result, offset, bytes), sum.data(), bytes);
        }
    }
    ForgetPadding(instruction, result, shape);
}

inline bool CheckMmad(const CallSite& site, const AscendC::MmadParams& params)
{
    bool fits = RequireRange(site, "m", params.m, 0, 4095);
    fits &= RequireRange(site, "n", params.n, 0, 4095);
    fits &= RequireRange(site, "k", params.k, 0, 4095);
    if (params.unitFlag != 0 || params.cmatrixSource) {
        site.Report(Check::kUnsupported, params.cmatrixSource ? "cmatrixSource is set" : "unitFlag is set",
                    "use SetFlag and WaitFlag<HardEvent::M_FIX> in place of unitFlag, and cmatrixInitVal in place of "
                    "a bias: this model has neither");
        fits = false;
    }
    return fits;
}

template <typename T>
void RunMmad(const CallSite& site, const LocalView& dst, const LocalView& left, const LocalView& right,
             const AscendC::MmadParams& params)
{
    bool placed = RequireMemory(site, dst, "dstLocal", {Memory::kL0C});
    placed &= RequireMemory(site, left, "fmLocal", {Memory::kL0A});
    placed &= RequireMemory(site, right, "filterLocal", {Memory::kL0B});
    if (!placed || !CheckMmad(site, params)) return;
    if (params.m == 0 || params.n == 0 || params.k == 0) return;
    const MmadShape shape{params.m, params.n, params.k, CubeType<T>::kDepth};
    const bool accumulate = !params.cmatrixInitVal || params.isBias;
    if (accumulate && (shape.m / kCubeEdge) * (shape.n / kCubeEdge) >= kSelfOrderedFractals) {
        Core::Current().Barrier(Pipe::kM, kInsideLibrary);
    }
    Instruction instruction(Pipe::kM, site.call, site.where);
    instruction.CheckAligned(dst, kResultAlignment, "dstLocal");
    instruction.CheckAligned(left, kCubeFractalBytes, "fmLocal");
    instruction.CheckAligned(right, kCubeFractalBytes, "filterLocal");
    const uint64_t columnBytes = static_cast<uint64_t>(CubeBlocks(shape.m)) * kResultAlignment;
    if (dst.offset % kResultAlignment == 0) {  // else CheckAligned has reported it
        PlaceResult(site, {dst.offset, dst.offset + CubeBlocks(shape.n) * columnBytes, columnBytes});
    }
    Multiply<T>(instruction, dst, left, right, shape, accumulate);
    instruction.ComputeCost(CubeBlocks(shape.m) * CubeBlocks(shape.n) * shape.DepthBlocks(), 1);
}

}  // namespace ascendc_host

namespace AscendC {

// m, n and k need not be multiples of a fractal; what lies behind them in the last fractals does not count.
template <typename DstT, typename Src0T, typename Src1T>
void Mmad(const LocalTensor<DstT>& dstLocal, const LocalTensor<Src0T>& fmLocal, const LocalTensor<Src1T>& filterLocal,
          const MmadParams& mmadParams, Where where = Where::Here())
{
    static_assert(
        std::is_same_v<Src0T, Src1T> && ascendc_host::kIsOneOf<Src0T, half, bfloat16_t, int8_t> &&
            std::is_same_v<DstT, typename ascendc_host::CubeType<Src0T>::Result>,
        "Mmad: this model multiplies half by half or bfloat16_t by bfloat16_t into float, int8_t by int8_t into "
        "int32_t");
    ascendc_host::RunMmad<Src0T>(ascendc_host::CallSite{"Mmad", where}, dstLocal.View(), fmLocal.View(),
                                 filterLocal.View(), mmadParams);
}

}  // namespace AscendC
