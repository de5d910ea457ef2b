// Fixpipe from L0C to global memory: float or int32_t as it is, fractals (NZ) to rows (ND).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "cube_params.h"
#include "library_calls.h"
#include "mmad.h"
#include "operand_checks.h"
#include "machine/defects.h"
#include "tensor.h"
#include "vector_lanes.h"
#include "vector_shape.h"

namespace ascendc_host {

inline bool CheckFixpipe(const CallSite& site, const AscendC::FixpipeParamsV220& params)
{
    bool fits = RequireRange(site, "nSize", params.nSize, 0, 4095);
    fits &= RequireRange(site, "mSize", params.mSize, 0, 8192);
    fits &= RequireRange(site, "srcStride", params.srcStride, 0, 65535);
    fits &= RequireRange(site, "dstStride", params.dstStride, 1, UINT32_MAX);
    fits &= RequireRange(site, "ndNum", params.ndNum, 0, 65535);
    if (params.mSize > 1 && params.dstStride < params.nSize) {
        site.Report(Check::kOverlap,
                    "rows of nSize = " + std::to_string(params.nSize) +
                        " elements go to places dstStride = " + std::to_string(params.dstStride) + " elements apart",
                    "make dstStride at least nSize");
    }
    return fits;
}

inline bool IsPlainFixpipe(const CallSite& site, const AscendC::FixpipeParamsV220& params)
{
    const char* extra = params.quantPre != NoQuant ? "quantPre"
                        : params.reluEn            ? "reluEn"
                        : params.unitFlag != 0     ? "unitFlag"
                        : params.isChannelSplit    ? "isChannelSplit"
                        : params.ndNum > 1         ? "ndNum above 1"
                                                   : nullptr;
    if (extra == nullptr) return true;
    site.Report(Check::kUnsupported, std::string(extra) + " is set, which this model does not have",
                "move one matrix as it is, ordered by flags, and convert it on a vector core");
    return false;
}

// A row of a fractal. What Mmad left undefined behind column n comes along where nSize asks for the whole fractal, and
// stays unwritten; a row in which nothing has been written is read as it is, and reported.
inline void MoveResultRow(Instruction& instruction, uint8_t* target, const LocalView& src, uint64_t from,
                          uint64_t bytes)
{
    uint64_t defined = bytes;
    if (bytes == kResultRowBytes) {
        instruction.CheckSpan(src, from, from + bytes, "srcLocal");
        const uint32_t written =
            Core::Current().WrittenBytes(src.offset + static_cast<uint32_t>(from), kResultRowBytes);
        defined = written == 0 ? bytes : written;
    }
    std::memcpy(target, instruction.Read(src, from, defined), defined);
    if (defined < bytes) instruction.ForgetGm(target + defined, bytes - defined);
}

inline void RunFixpipe(const CallSite& site, const GmView& dst, const LocalView& src,
                       const AscendC::FixpipeParamsV220& params)
{
    if (!RequireMemory(site, src, "srcLocal", {Memory::kL0C})) return;
    if (!CheckFixpipe(site, params) || !IsPlainFixpipe(site, params)) return;
    if (params.nSize == 0 || params.mSize == 0 || params.ndNum == 0) return;
    Core::Current().Barrier(Pipe::kFix, kInsideLibrary);  // as in the public header
    Instruction instruction(Pipe::kFix, site.call, site.where);
    instruction.CheckAligned(src, kResultRowBytes, "srcLocal");
    const uint64_t rowBytes = params.nSize * sizeof(float);
    const bool whole = Planted(Defect::kFixpipeWritesWholeFractals);
    const uint64_t rows = whole ? CubeBlocks(params.mSize) * kCubeEdge : params.mSize;
    const auto* first = static_cast<const uint8_t*>(dst.base);
    for (uint64_t row = 0; row < rows; ++row) {
        const uint64_t offset = row * params.dstStride * sizeof(float);
        if (row >= params.mSize && !Core::Current().InGm(first + offset, rowBytes)) break;  // of the planted defect
        uint8_t* target = instruction.WriteGm(dst, offset, rowBytes);
        for (uint64_t at = 0, block = 0; at < rowBytes; at += kResultRowBytes, ++block) {
            const uint64_t bytes = std::min<uint64_t>(kResultRowBytes, rowBytes - at);
            const uint64_t from = (block * params.srcStride + row) * kResultRowBytes;
            MoveResultRow(instruction, target + at, src, from, bytes);
        }
    }
    const uint64_t readRows = (CubeBlocks(params.nSize) - 1) * static_cast<uint64_t>(params.srcStride) + params.mSize;
    ForgetResults(src.offset, src.offset + readRows * kResultRowBytes);
    instruction.DmaCost(params.mSize * rowBytes);
}

}  // namespace ascendc_host

namespace AscendC {

template <typename DstT, typename SrcT, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<DstT>& dstGlobal, const LocalTensor<SrcT>& srcLocal,
             const FixpipeParamsV220& intriParams, Where where = Where::Here())
{
    static_assert(std::is_same_v<DstT, SrcT> && ascendc_host::kIsOneOf<SrcT, float, int32_t>,
                  "Fixpipe: this model moves float to float and int32_t to int32_t");
    static_assert(config.format == CO2Layout::ROW_MAJOR, "Fixpipe: this model moves with CFG_ROW_MAJOR");
    ascendc_host::RunFixpipe(ascendc_host::CallSite{"Fixpipe", where}, dstGlobal.View(), srcLocal.View(), intriParams);
}

}  // namespace AscendC
