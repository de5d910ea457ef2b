// Flags, barriers and SyncAll.
#pragma once

#include "enums.h"
#include "machine/core.h"
#include "tensor.h"

namespace AscendC {

template <HardEvent event>
void SetFlag(int32_t eventID, Where where = Where::Here()) {
    static_assert(ascendc_host::IsVectorCoreEvent(event),
                  "SetFlag: a vector core has no such event; use one between S, V, MTE2 and MTE3");
    constexpr ascendc_host::PipePair pipes = ascendc_host::PipesOf(event);
    ascendc_host::Core::Current().SetFlag(pipes.from, pipes.to, eventID, where);
}

template <HardEvent event>
void WaitFlag(int32_t eventID, Where where = Where::Here()) {
    static_assert(ascendc_host::IsVectorCoreEvent(event),
                  "WaitFlag: a vector core has no such event; use one between S, V, MTE2 and MTE3");
    constexpr ascendc_host::PipePair pipes = ascendc_host::PipesOf(event);
    ascendc_host::Core::Current().WaitFlag(pipes.from, pipes.to, eventID, where);
}

template <pipe_t pipe>
void PipeBarrier(Where where = Where::Here()) {
    static_assert(pipe != PIPE_S, "PipeBarrier<PIPE_S> is not allowed: the scalar unit runs in program order");
    static_assert(pipe == PIPE_V || pipe == PIPE_MTE2 || pipe == PIPE_MTE3 || pipe == PIPE_ALL,
                  "PipeBarrier: a vector core has the pipes V, MTE2 and MTE3, and PIPE_ALL");
    ascendc_host::Core::Current().Barrier(ascendc_host::PipeOf(pipe), where);
}

// The hardware form; it needs a kernel type with a scheduler, such as KERNEL_TYPE_MIX_AIV_1_0.
template <bool isAIVOnly = true>
void SyncAll(Where where = Where::Here()) {
    ascendc_host::Core::Current().SyncAll(true, where);
}

// SINGLE_CACHE_LINE cleans the 64-byte line of the tensor's first element, ENTIRE_DATA_CACHE every line.
template <typename T, CacheLine entireType, DcciDst dcciDst>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, Where where = Where::Here()) {
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
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, Where where = Where::Here()) {
    DataCacheCleanAndInvalid<T, entireType, DcciDst::CACHELINE_ALL>(dst, where);
}

}  // namespace AscendC
