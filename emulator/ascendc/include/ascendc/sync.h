// Flags, barriers and SyncAll.
#pragma once

#include <type_traits>

#include "enums.h"
#include "machine/core.h"
#include "tensor.h"

namespace AscendC {

template <HardEvent event>
void SetFlag(int32_t eventID, Where where = Where::Here())
{
    static_assert(ascendc_host::IsEvent(event),
                  "SetFlag: no core has such an event; use one between S, V, MTE2 and MTE3 on a vector core, between "
                  "S, M, MTE1, MTE2 and FIX on a cube core");
    constexpr ascendc_host::PipePair pipes = ascendc_host::PipesOf(event);
    ascendc_host::Core::Current().SetFlag(pipes.from, pipes.to, eventID, where);
}

template <HardEvent event>
void WaitFlag(int32_t eventID, Where where = Where::Here())
{
    static_assert(ascendc_host::IsEvent(event),
                  "WaitFlag: no core has such an event; use one between S, V, MTE2 and MTE3 on a vector core, between "
                  "S, M, MTE1, MTE2 and FIX on a cube core");
    constexpr ascendc_host::PipePair pipes = ascendc_host::PipesOf(event);
    ascendc_host::Core::Current().WaitFlag(pipes.from, pipes.to, eventID, where);
}

template <pipe_t pipe>
void PipeBarrier(Where where = Where::Here())
{
    static_assert(pipe != PIPE_S, "PipeBarrier<PIPE_S> is not allowed: the scalar unit runs in program order");
    static_assert(pipe == PIPE_ALL || ascendc_host::IsPipeOfACore(pipe),
                  "PipeBarrier: a vector core has the pipes V, MTE2 and MTE3, a cube core M, MTE1, MTE2 and FIX, and "
                  "both PIPE_ALL");
    ascendc_host::Core::Current().Barrier(ascendc_host::PipeOf(pipe), where);
}

// The hardware form; it needs a kernel type with a scheduler, such as KERNEL_TYPE_MIX_AIV_1_0.
template <bool isAIVOnly = true>
void SyncAll(Where where = Where::Here())
{
    ascendc_host::Core::Current().SyncAll(where);
}

// Between the cores of a block, or of the launch: mode 0 all cores of one kind, 1 the vector cores of a block, 2 the
// cube core of a block and its vector cores.
template <uint8_t modeId, pipe_t pipe>
void CrossCoreSetFlag(uint16_t flagId, Where where = Where::Here())
{
    static_assert(pipe != PIPE_S && ascendc_host::IsPipeOfACore(pipe),
                  "CrossCoreSetFlag: pipe is V, MTE2 or MTE3 on a vector core, M, MTE1, MTE2 or FIX on a cube core");
    ascendc_host::Core::Current().CrossCoreSet(modeId, ascendc_host::PipeOf(pipe), flagId, where);
}

// On the 910B the template arguments have no effect: the scalar unit waits, and with it everything behind.
template <uint8_t modeId = 0, pipe_t pipe = PIPE_S>
void CrossCoreWaitFlag(uint16_t flagId, Where where = Where::Here())
{
    ascendc_host::Core::Current().CrossCoreWait(flagId, where);
}

// SINGLE_CACHE_LINE cleans the 64-byte line of the tensor's first element, ENTIRE_DATA_CACHE every line.
template <typename T, CacheLine entireType, DcciDst dcciDst>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, Where where = Where::Here())
{
    static_assert(dcciDst == DcciDst::CACHELINE_OUT || dcciDst == DcciDst::CACHELINE_ALL,
                  "DataCacheCleanAndInvalid: a GlobalTensor needs CACHELINE_OUT or CACHELINE_ALL");
    ascendc_host::Core& core = ascendc_host::Core::Current();
    if constexpr (entireType == CacheLine::ENTIRE_DATA_CACHE) {
        core.CacheCleanAll(where);
    } else {
        core.CacheClean(dst.GetPhyAddr(), 1, where);
    }
}

template <typename T, CacheLine entireType>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, Where where = Where::Here())
{
    DataCacheCleanAndInvalid<T, entireType, DcciDst::CACHELINE_ALL>(dst, where);
}

// The line of 64 bytes at `cacheOffset` bytes into `src` is on its way into the data cache from now on.
template <typename T>
void DataCachePreload(const GlobalTensor<uint64_t>& src, const T cacheOffset, Where where = Where::Here())
{
    static_assert(std::is_same_v<T, int16_t> || std::is_same_v<T, int64_t>,
                  "DataCachePreload: the offset is an int16_t or an int64_t");
    ascendc_host::Instruction instruction(ascendc_host::Pipe::kS, "DataCachePreload", where);
    instruction.PreloadGm(reinterpret_cast<const uint8_t*>(src.GetPhyAddr()) + cacheOffset);
}

}  // namespace AscendC
