// DataCopy from global memory to L1 that turns rows (ND) into fractals (NZ): the 32-byte pieces of a row, "C0", lie
// dstNzC0Stride apart, the pieces of neighbouring rows dstNzNStride.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cube_params.h"
#include "operand_checks.h"
#include "machine/defects.h"
#include "tensor.h"
#include "vector_shape.h"

namespace ascendc_host {

// What a row takes at least. Derived: asc-devkit, data_copy example, 302 MB on 24 cores take 283.5 us in rows of 128
// bytes and 214.5 us in rows of 512 bytes, that is 5.33 and 16.15 cycles for a row; a line through both. Out of the L2,
// rows of 2048 bytes take 18 cycles there; what narrower ones take is not published, so they get no faster here.
constexpr double kNd2NzRowCycles = 1.73;
constexpr double kNd2NzBytesPerCycle = 35.5;

inline bool CheckNd2Nz(const CallSite& site, const AscendC::Nd2NzParams& params)
{
    bool fits = RequireRange(site, "ndNum", params.ndNum, 0, 4095);
    fits &= RequireRange(site, "nValue", params.nValue, 0, 16384);
    fits &= RequireRange(site, "dValue", params.dValue, 0, 65535);
    fits &= RequireRange(site, "srcNdMatrixStride", params.srcNdMatrixStride, 0, 65535);
    fits &= RequireRange(site, "srcDValue", params.srcDValue, 1, 65535);
    fits &= RequireRange(site, "dstNzC0Stride", params.dstNzC0Stride, 1, 16384);
    fits &= RequireRange(site, "dstNzNStride", params.dstNzNStride, 1, 16384);
    fits &= RequireRange(site, "dstNzMatrixStride", params.dstNzMatrixStride, 0, 16384);
    return fits;
}

// Where the pieces of one copy land; no two may meet.
class LandingBlocks {
public:
    void Mark(uint64_t offset)
    {
        const uint64_t block = offset / kBlockBytes;
        if (block >= taken_.size()) taken_.resize(block + 1);
        meet_ = meet_ || taken_[block];
        taken_[block] = true;
    }

    void Report(const CallSite& site) const
    {
        if (!meet_) return;
        site.Report(Check::kOverlap, "several rows or matrices of the copy land on the same bytes of dstLocal",
                    "make dstNzC0Stride at least nValue * dstNzNStride, and dstNzMatrixStride at least a matrix");
    }

private:
    std::vector<bool> taken_;
    bool meet_ = false;
};

// One row: its pieces of 32 bytes, the last one filled up with zeros.
inline void SpreadRow(Instruction& instruction, const LocalView& dst, uint64_t offset, uint64_t step,
                      const uint8_t* row, uint64_t bytes, LandingBlocks& landing)
{
    for (uint64_t at = 0; at < bytes; at += kBlockBytes, offset += step) {
        const uint64_t piece = std::min<uint64_t>(kBlockBytes, bytes - at);
        uint8_t* target = instruction.Write(dst, offset, kBlockBytes);
        std::memcpy(target, row + at, piece);
        std::memset(target + piece, 0, kBlockBytes - piece);
        landing.Mark(offset);
    }
}

inline void CopyNd2Nz(const CallSite& site, const LocalView& dst, const GmView& src, const AscendC::Nd2NzParams& params,
                      uint64_t elementBytes)
{
    if (!RequireMemory(site, dst, "dstLocal", {Memory::kL1}) || !CheckNd2Nz(site, params)) return;
    const uint64_t rows = static_cast<uint64_t>(params.ndNum) * params.nValue;
    const uint64_t rowBytes = params.dValue * elementBytes;
    if (rows * rowBytes == 0) return;
    Instruction instruction(Pipe::kMte2, site.call, site.where);
    instruction.CheckAligned(dst, kBlockBytes, "dstLocal");
    const bool rowByRow = Planted(Defect::kFractalsRowByRow);
    const uint64_t fractalBytes = 16 * kBlockBytes;
    const uint64_t pieces = (rowBytes + kBlockBytes - 1) / kBlockBytes;
    const uint64_t step = rowByRow ? fractalBytes : params.dstNzC0Stride * kBlockBytes;
    LandingBlocks landing;
    for (uint64_t matrix = 0; matrix < params.ndNum; ++matrix) {
        for (uint64_t row = 0; row < params.nValue; ++row) {
            const uint64_t from = (matrix * params.srcNdMatrixStride + row * params.srcDValue) * elementBytes;
            const uint64_t inMatrix = rowByRow ? row / 16 * pieces * fractalBytes + row % 16 * kBlockBytes
                                               : row * params.dstNzNStride * kBlockBytes;
            const uint64_t to = matrix * params.dstNzMatrixStride * elementBytes + inMatrix;
            SpreadRow(instruction, dst, to, step, instruction.ReadGm(src, from, rowBytes), rowBytes, landing);
        }
    }
    landing.Report(site);
    const double bytes = static_cast<double>(rows * rowBytes);
    instruction.DmaCost(rows * rowBytes, bytes / kNd2NzBytesPerCycle + kNd2NzRowCycles * static_cast<double>(rows));
    const bool apart = params.srcDValue != params.dValue;
    instruction.GmRows(apart ? rows : 1, apart ? rowBytes : rows * rowBytes);
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dstLocal, const GlobalTensor<T>& srcGlobal, const Nd2NzParams& intriParams,
              Where where = Where::Here())
{
    static_assert(sizeof(T) <= 4, "DataCopy with Nd2NzParams: the 910B supports types of 8, 16 and 32 bits");
    ascendc_host::CopyNd2Nz(ascendc_host::CallSite{"DataCopy", where}, dstLocal.View(), srcGlobal.View(), intriParams,
                            sizeof(T));
}

}  // namespace AscendC
