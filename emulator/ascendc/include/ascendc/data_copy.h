// DataCopy and DataCopyPad between global memory and the Unified Buffer, inside the buffer, and from global memory to
// L1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "library_calls.h"
#include "operand_checks.h"
#include "repeat_params.h"
#include "machine/defects.h"
#include "tensor.h"
#include "vector_shape.h"

namespace ascendc_host {

constexpr uint64_t kMaxPadBlockCount = 4095;
constexpr uint64_t kMaxPadBlockBytes = 2097151;
constexpr uint64_t kMaxBlockLength = 65535;
constexpr uint64_t kGmStrideLimit = 1ull << 31;  // what shipped kernels keep below, though the field has 32 bits

// A copy of `count` pieces of `bytes` bytes; steps go from start to start.
struct BlockCopy {
    uint64_t count = 1;
    uint64_t bytes = 0;
    uint64_t sourceStep = 0;
    uint64_t targetStep = 0;
};

// What stands to the left and right of every piece in the Unified Buffer.
struct Padding {
    uint64_t left = 0;   // bytes
    uint64_t right = 0;  // bytes that are asked for
    uint64_t tail = 0;   // bytes that fill the last block
    bool defined = false;
    uint32_t elementBytes = 1;
    uint64_t value = 0;
};

inline void WritePadding(Instruction& instruction, const LocalView& view, uint64_t offset, uint64_t bytes,
                         const Padding& padding)
{
    if (bytes == 0) return;
    if (!padding.defined) {
        instruction.WriteUndefined(view, offset, bytes);
        return;
    }
    uint8_t* target = instruction.Write(view, offset, bytes);
    for (uint64_t at = 0; at < bytes; at += padding.elementBytes) {
        std::memcpy(target + at, &padding.value, padding.elementBytes);
    }
}

inline void CopyIn(const CallSite& site, const LocalView& dst, const GmView& src, const BlockCopy& copy,
                   const Padding& padding)
{
    if (!RequireMemory(site, dst, "dstLocal", {Memory::kUb, Memory::kL1})) return;
    Instruction instruction(Pipe::kMte2, site.call, site.where);
    instruction.CheckAligned(dst, kBlockBytes, "dstLocal");
    for (uint64_t i = 0; i < copy.count; ++i) {
        const uint64_t start = i * copy.targetStep;
        const uint8_t* from = instruction.ReadGm(src, i * copy.sourceStep, copy.bytes);
        WritePadding(instruction, dst, start, padding.left, padding);
        std::memcpy(instruction.Write(dst, start + padding.left, copy.bytes), from, copy.bytes);
        WritePadding(instruction, dst, start + padding.left + copy.bytes, padding.right + padding.tail, padding);
    }
    instruction.DmaCost(copy.count * copy.bytes);
    const bool apart = copy.count == 1 || copy.sourceStep != copy.bytes;
    instruction.GmRows(apart ? copy.count : 1, apart ? copy.bytes : copy.count * copy.bytes);
}

inline void CopyOut(const CallSite& site, const GmView& dst, const LocalView& src, const BlockCopy& copy)
{
    Instruction instruction(Pipe::kMte3, site.call, site.where);
    instruction.CheckAligned(src, kBlockBytes, "srcLocal");
    for (uint64_t i = 0; i < copy.count; ++i) {
        const uint8_t* from = instruction.Read(src, i * copy.sourceStep, copy.bytes);
        std::memcpy(instruction.WriteGm(dst, i * copy.targetStep, copy.bytes), from, copy.bytes);
    }
    instruction.DmaCost(copy.count * copy.bytes);
}

// UB to UB runs on the vector pipe, 256 bytes in a cycle.
inline void CopyInside(const CallSite& site, const LocalView& dst, const LocalView& src, const BlockCopy& copy)
{
    Instruction instruction(Pipe::kV, site.call, site.where);
    instruction.CheckAligned(dst, kBlockBytes, "dstLocal");
    instruction.CheckAligned(src, kBlockBytes, "srcLocal");
    VectorOperand to;
    to.name = "dstLocal";
    to.view = dst;
    VectorOperand from;
    from.name = "srcLocal";
    from.view = src;
    for (uint64_t i = 0; i < copy.count; ++i) {
        const uint8_t* source = instruction.Read(src, i * copy.sourceStep, copy.bytes);
        std::memmove(instruction.Write(dst, i * copy.targetStep, copy.bytes), source, copy.bytes);
    }
    RequireDisjoint(site, to, {0, (copy.count - 1) * copy.targetStep + copy.bytes}, from,
                    {0, (copy.count - 1) * copy.sourceStep + copy.bytes});
    instruction.ComputeCost(static_cast<double>((copy.count * copy.bytes + kRepeatBytes - 1) / kRepeatBytes), 1);
}

// A copy of a number of elements; nothing for 0.
template <typename T>
std::optional<BlockCopy> CountCopy(const CallSite& site, uint64_t count)
{
    const uint64_t bytes = count * sizeof(T);
    if (bytes % kBlockBytes != 0) {
        site.Report(
            Check::kParameter,
            "count is " + std::to_string(count) + ", that is " + std::to_string(bytes) + " bytes, no multiple of 32",
            "use DataCopyPad, or round the count to whole blocks of 32 bytes");
    }
    BlockCopy copy;
    copy.bytes = bytes / kBlockBytes * kBlockBytes;
    if (copy.bytes == 0) return std::nullopt;
    return copy;
}

inline bool CheckBlocks(const CallSite& site, uint64_t count, uint64_t length, uint64_t maxLength, const char* unit)
{
    if (count >= 1 && count <= kMaxPadBlockCount && length >= 1 && length <= maxLength) return true;
    site.Report(Check::kParameter,
                "blockCount is " + std::to_string(count) + " and blockLen is " + std::to_string(length) + " " + unit,
                "give a blockCount from 1 to 4095 and a blockLen from 1 to " + std::to_string(maxLength) + " " + unit);
    return false;
}

// Lengths and gaps are in blocks of 32 bytes on both sides.
inline std::optional<BlockCopy> StridedCopy(const CallSite& site, const AscendC::DataCopyParams& params)
{
    if (!CheckBlocks(site, params.blockCount, params.blockLen, kMaxBlockLength, "blocks of 32 bytes")) {
        return std::nullopt;
    }
    BlockCopy copy;
    copy.count = params.blockCount;
    copy.bytes = static_cast<uint64_t>(params.blockLen) * kBlockBytes;
    copy.sourceStep = copy.bytes + static_cast<uint64_t>(params.srcStride) * kBlockBytes;
    copy.targetStep = copy.bytes + static_cast<uint64_t>(params.dstStride) * kBlockBytes;
    return copy;
}

template <typename T>
bool CheckPadBlocks(const CallSite& site, const AscendC::DataCopyExtParams& params, uint64_t gmStride)
{
    if (!CheckBlocks(site, params.blockCount, params.blockLen, kMaxPadBlockBytes, "bytes")) return false;
    if (params.blockLen % sizeof(T) != 0) {
        site.Report(Check::kParameter,
                    "blockLen is " + std::to_string(params.blockLen) + " bytes, no multiple of the element's " +
                        std::to_string(sizeof(T)),
                    "copy whole elements, or as uint8_t");
    }
    if (params.blockCount > 1 && gmStride >= kGmStrideLimit) {
        site.Report(Check::kParameter, "the gap in global memory is " + std::to_string(gmStride) + " bytes",
                    "keep gaps below 2^31 bytes, and use two commands for larger ones");
    }
    return true;
}

template <typename T>
Padding PaddingOf(const CallSite& site, const AscendC::DataCopyExtParams& params,
                  const AscendC::DataCopyPadExtParams<T>& wanted)
{
    Padding padding;
    padding.elementBytes = sizeof(T);
    padding.left = wanted.leftPadding * sizeof(T);
    padding.right = wanted.rightPadding * sizeof(T);
    std::memcpy(&padding.value, &wanted.paddingValue, sizeof(T));
    if (padding.left > kBlockBytes || padding.right > kBlockBytes) {
        site.Report(Check::kParameter,
                    "the padding is " + std::to_string(padding.left) + " bytes left and " +
                        std::to_string(padding.right) + " bytes right",
                    "pad by at most 32 bytes on each side");
    }
    if (sizeof(T) == 8 && wanted.isPad && padding.value != 0) {
        site.Report(Check::kParameter, "a paddingValue other than 0 for a 64-bit type", "pad 64-bit types with 0 only");
    }
    const uint64_t bytes = padding.left + params.blockLen + padding.right;
    padding.tail = (kBlockBytes - bytes % kBlockBytes) % kBlockBytes;
    // Without any padding asked for the filling of the last block is a dummy, whatever isPad says.
    padding.defined = wanted.isPad && padding.left + padding.right != 0;
    return padding;
}

template <typename T>
void RunPadIn(const CallSite& site, const AscendC::LocalTensor<T>& dst, const AscendC::GlobalTensor<T>& src,
              const AscendC::DataCopyExtParams& params, const AscendC::DataCopyPadExtParams<T>& wanted)
{
    if (!RequireMemory(site, dst.View(), "dstLocal", {Memory::kUb})) return;
    if (!CheckPadBlocks<T>(site, params, params.srcStride)) return;
    const Padding padding = PaddingOf(site, params, wanted);
    BlockCopy copy;
    copy.count = params.blockCount;
    copy.bytes = params.blockLen;
    const uint32_t gap = Planted(Defect::kWideGapsWrap) ? params.srcStride % (1u << 30) : params.srcStride;
    copy.sourceStep = copy.bytes + gap;
    copy.targetStep = padding.left + copy.bytes + padding.right + padding.tail +
                      static_cast<uint64_t>(params.dstStride) * kBlockBytes;
    CopyIn(site, dst.View(), src.View(), copy, padding);
}

template <typename T>
void RunPadOut(const CallSite& site, const AscendC::GlobalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
               const AscendC::DataCopyExtParams& params)
{
    if (!CheckPadBlocks<T>(site, params, params.dstStride)) return;
    BlockCopy copy;
    copy.count = params.blockCount;
    copy.bytes = params.blockLen;
    copy.sourceStep = (copy.bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes +
                      static_cast<uint64_t>(params.srcStride) * kBlockBytes;
    copy.targetStep = copy.bytes + (Planted(Defect::kGapsOfOutputsIgnored) ? 0 : params.dstStride);
    CopyOut(site, dst.View(), src.View(), copy);
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dstLocal, const GlobalTensor<T>& srcGlobal, const uint32_t calCount,
              Where where = Where::Here())
{
    const ascendc_host::CallSite site{"DataCopy", where};
    const auto copy = ascendc_host::CountCopy<T>(site, calCount);
    if (copy) ascendc_host::CopyIn(site, dstLocal.View(), srcGlobal.View(), *copy, ascendc_host::Padding{});
}

template <typename T>
void DataCopy(const GlobalTensor<T>& dstGlobal, const LocalTensor<T>& srcLocal, const uint32_t calCount,
              Where where = Where::Here())
{
    const ascendc_host::CallSite site{"DataCopy", where};
    const auto copy = ascendc_host::CountCopy<T>(site, calCount);
    if (copy) ascendc_host::CopyOut(site, dstGlobal.View(), srcLocal.View(), *copy);
}

template <typename T>
void DataCopy(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const uint32_t calCount,
              Where where = Where::Here())
{
    const ascendc_host::CallSite site{"DataCopy", where};
    const auto copy = ascendc_host::CountCopy<T>(site, calCount);
    if (copy) ascendc_host::CopyInside(site, dstLocal.View(), srcLocal.View(), *copy);
}

template <typename T>
void DataCopy(const LocalTensor<T>& dstLocal, const GlobalTensor<T>& srcGlobal, const DataCopyParams& repeatParams,
              Where where = Where::Here())
{
    const ascendc_host::CallSite site{"DataCopy", where};
    const auto copy = ascendc_host::StridedCopy(site, repeatParams);
    if (copy) ascendc_host::CopyIn(site, dstLocal.View(), srcGlobal.View(), *copy, ascendc_host::Padding{});
}

template <typename T>
void DataCopy(const GlobalTensor<T>& dstGlobal, const LocalTensor<T>& srcLocal, const DataCopyParams& repeatParams,
              Where where = Where::Here())
{
    const ascendc_host::CallSite site{"DataCopy", where};
    const auto copy = ascendc_host::StridedCopy(site, repeatParams);
    if (copy) ascendc_host::CopyOut(site, dstGlobal.View(), srcLocal.View(), *copy);
}

template <typename T>
void DataCopy(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, const DataCopyParams& repeatParams,
              Where where = Where::Here())
{
    const ascendc_host::CallSite site{"DataCopy", where};
    const auto copy = ascendc_host::StridedCopy(site, repeatParams);
    if (copy) ascendc_host::CopyInside(site, dstLocal.View(), srcLocal.View(), *copy);
}

template <typename T>
void DataCopyPad(const LocalTensor<T>& dstLocal, const GlobalTensor<T>& srcGlobal,
                 const DataCopyExtParams& dataCopyParams, const DataCopyPadExtParams<T>& padParams,
                 Where where = Where::Here())
{
    ascendc_host::RunPadIn(ascendc_host::CallSite{"DataCopyPad", where}, dstLocal, srcGlobal, dataCopyParams,
                           padParams);
}

template <typename T>
void DataCopyPad(const GlobalTensor<T>& dstGlobal, const LocalTensor<T>& srcLocal,
                 const DataCopyExtParams& dataCopyParams, Where where = Where::Here())
{
    ascendc_host::RunPadOut(ascendc_host::CallSite{"DataCopyPad", where}, dstGlobal, srcLocal, dataCopyParams);
}

}  // namespace AscendC
