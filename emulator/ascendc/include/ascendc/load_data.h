// LoadData in its 2D form: fractals of 512 bytes from L1 to L0A or L0B.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "cube_params.h"
#include "machine/core.h"
#include "operand_checks.h"
#include "tensor.h"
#include "vector_lanes.h"
#include "vector_shape.h"

namespace ascendc_host {

constexpr uint32_t kFractalBytes = 512;
constexpr uint32_t kFractalRows = 16;  // of 32 bytes each

// asc-devkit, Cube instruction theoretical performance, NPU 2201: 256 bytes per cycle to L0A, 128 to L0B.
constexpr double FractalCycles(Memory target) { return kFractalBytes / (target == Memory::kL0A ? 256.0 : 128.0); }

struct FractalMove {
    Instruction& instruction;
    const LocalView& dst;
    uint64_t to;
    const LocalView& src;
    uint64_t from;

    // Whether the row holds data. Rows of padding that nothing has written are moved as well, and stay unwritten.
    bool IsRowWritten(uint32_t row) const
    {
        return Core::Current().Initialised(src.offset + static_cast<uint32_t>(from) + row * kBlockBytes);
    }

    // The first row behind `row` that differs from it in being written.
    uint32_t EndOfRun(uint32_t row) const
    {
        const bool written = IsRowWritten(row);
        while (row < kFractalRows && IsRowWritten(row) == written) ++row;
        return row;
    }

    void Straight() const
    {
        for (uint32_t row = 0, end = 0; row < kFractalRows; row = end) {
            end = EndOfRun(row);
            const uint64_t offset = row * kBlockBytes;
            const uint64_t bytes = (end - row) * kBlockBytes;
            if (!IsRowWritten(row)) {
                instruction.WriteUndefined(dst, to + offset, bytes);
                continue;
            }
            const uint8_t* source = instruction.Read(src, from + offset, bytes);
            std::memcpy(instruction.Write(dst, to + offset, bytes), source, bytes);
        }
    }

    // Elements of 16 bits; row `row` of the source becomes column `row`.
    void Transposed() const
    {
        constexpr uint64_t element = sizeof(uint16_t);
        for (uint32_t row = 0; row < kFractalRows; ++row) {
            const bool written = IsRowWritten(row);
            const uint8_t* source = written ? instruction.Read(src, from + row * kBlockBytes, kBlockBytes) : nullptr;
            for (uint32_t column = 0; column < kFractalRows; ++column) {
                const uint64_t offset = to + column * kBlockBytes + row * element;
                if (written) {
                    std::memcpy(instruction.Write(dst, offset, element), source + column * element, element);
                } else {
                    instruction.WriteUndefined(dst, offset, element);
                }
            }
        }
    }
};

inline bool CheckLoadData(const CallSite& site, const AscendC::LoadData2DParams& params, size_t elementBytes)
{
    bool fits = RequireRange(site, "startIndex", params.startIndex, 0, 65535);
    fits &= RequireRange(site, "repeatTimes", params.repeatTimes, 1, 255);
    fits &= RequireRange(site, "srcStride", params.srcStride, 0, 65535);
    fits &= RequireRange(site, "dstGap", params.dstGap, 0, 65535);
    if (params.addrMode != 0) {
        site.Report(Check::kParameter, "addrMode is " + std::to_string(params.addrMode),
                    "leave addrMode 0: from L1 the fractals are taken in rising order only");
    }
    if (params.ifTranspose && elementBytes != sizeof(uint16_t)) {
        site.Report(Check::kParameter, "ifTranspose is set for elements of " + std::to_string(elementBytes) + " bytes",
                    "leave ifTranspose false: LoadData turns fractals of 16-bit elements round, and no others");
        fits = false;
    }
    return fits;
}

inline void LoadFractals(const CallSite& site, const LocalView& dst, const LocalView& src,
                         const AscendC::LoadData2DParams& params, size_t elementBytes)
{
    const bool placed = RequireMemory(site, dst, "dstLocal", {Memory::kL0A, Memory::kL0B}) &&
                        RequireMemory(site, src, "srcLocal", {Memory::kL1});
    if (!placed || !CheckLoadData(site, params, elementBytes)) return;
    Instruction instruction(Pipe::kMte1, site.call, site.where);
    instruction.CheckAligned(dst, kFractalBytes, "dstLocal");
    instruction.CheckAligned(src, kBlockBytes, "srcLocal");
    for (uint64_t i = 0; i < params.repeatTimes; ++i) {
        const uint64_t to = i * (params.dstGap + 1) * kFractalBytes;
        const uint64_t from = (params.startIndex + i * params.srcStride) * kFractalBytes;
        instruction.CheckSpan(src, from, from + kFractalBytes, "srcLocal");
        const FractalMove move{instruction, dst, to, src, from};
        params.ifTranspose ? move.Transposed() : move.Straight();
    }
    instruction.ComputeCost(params.repeatTimes, FractalCycles(Core::Current().MemoryOf(dst)));
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T>
void LoadData(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const LoadData2DParams& loadDataParams,
              Where where = Where::Here())
{
    static_assert(ascendc_host::kIsOneOf<T, half, bfloat16_t, int8_t>,
                  "LoadData: this model moves fractals of half, bfloat16_t and int8_t");
    ascendc_host::LoadFractals(ascendc_host::CallSite{"LoadData", where}, dstLocal.View(), srcLocal.View(),
                               loadDataParams, sizeof(T));
}

}  // namespace AscendC
