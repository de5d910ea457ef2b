// Names of pipes, events, positions and modes, with the values of the CANN headers.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "machine/core.h"

enum pipe_t {
    PIPE_S = 0,
    PIPE_V,
    PIPE_M,
    PIPE_MTE1,
    PIPE_MTE2,
    PIPE_MTE3,
    PIPE_ALL,
    PIPE_MTE4 = 7,
    PIPE_MTE5 = 8,
    PIPE_V2 = 9,
    PIPE_FIX = 10,
};

enum event_t {
    EVENT_ID0 = 0,
    EVENT_ID1,
    EVENT_ID2,
    EVENT_ID3,
    EVENT_ID4,
    EVENT_ID5,
    EVENT_ID6,
    EVENT_ID7,
};

namespace AscendC {

enum class TPosition : uint8_t {
    GM,
    A1,
    A2,
    B1,
    B2,
    C1,
    C2,
    CO1,
    CO2,
    VECIN,
    VECOUT,
    VECCALC,
    LCM = VECCALC,
    SPM,
    SHM = SPM,
    TSCM,
    C2PIPE2GM,
    C2PIPE2LOCAL,
    MAX,
};
using QuePosition = TPosition;

enum class HardEvent : uint8_t {
    MTE2_MTE1,
    MTE1_MTE2,
    MTE1_M,
    M_MTE1,
    MTE2_V,
    V_MTE2,
    MTE3_V,
    V_MTE3,
    M_V,
    V_M,
    V_V,
    MTE3_MTE1,
    MTE1_MTE3,
    MTE1_V,
    MTE2_M,
    M_MTE2,
    V_MTE1,
    M_FIX,
    FIX_M,
    MTE3_MTE2,
    MTE2_MTE3,
    S_V,
    V_S,
    S_MTE2,
    MTE2_S,
    S_MTE3,
    MTE3_S,
    MTE2_FIX,
    FIX_MTE2,
    FIX_S,
    M_S,
    FIX_MTE3,
    MTE1_FIX,
    FIX_MTE1,
    FIX_FIX,
    MAX,
};

enum class RoundMode : uint8_t {
    CAST_NONE = 0,
    CAST_RINT,
    CAST_FLOOR,
    CAST_CEIL,
    CAST_ROUND,
    CAST_TRUNC,
    CAST_ODD,
};

enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };

enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };

enum class ReduceOrder : uint8_t { ORDER_VALUE_INDEX = 0, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };

enum class MaskMode : uint8_t { NORMAL = 0, COUNTER };

enum class CacheMode { CACHE_MODE_DISABLE = 0, CACHE_MODE_NORMAL = 1, CACHE_MODE_LAST = 2, CACHE_MODE_PERSISTENT = 4 };

enum class CacheRwMode { READ = 1, WRITE = 2, RW = 3 };

enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE };

enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

enum class GatherMaskMode : uint8_t { VERSION_V1 = 0, VERSION_V2 = 1 };

constexpr GatherMaskMode defaultGatherMaskMode = GatherMaskMode::VERSION_V2;

constexpr int32_t MIX = 0;
constexpr int32_t AIC = 1;
constexpr int32_t AIV = 2;

}  // namespace AscendC

namespace ascendc_host {

constexpr Pipe PipeOf(pipe_t pipe)
{
    switch (pipe) {
        case PIPE_S:
            return Pipe::kS;
        case PIPE_V:
            return Pipe::kV;
        case PIPE_M:
            return Pipe::kM;
        case PIPE_MTE1:
            return Pipe::kMte1;
        case PIPE_MTE2:
            return Pipe::kMte2;
        case PIPE_MTE3:
            return Pipe::kMte3;
        case PIPE_FIX:
            return Pipe::kFix;
        case PIPE_ALL:
            return Pipe::kAll;
        default:
            return Pipe::kCount;
    }
}

struct PipePair {
    Pipe from = Pipe::kCount;
    Pipe to = Pipe::kCount;
};

constexpr PipePair PipesOf(AscendC::HardEvent event)
{
    using AscendC::HardEvent;
    switch (event) {
        case HardEvent::MTE2_MTE1:
            return {Pipe::kMte2, Pipe::kMte1};
        case HardEvent::MTE1_MTE2:
            return {Pipe::kMte1, Pipe::kMte2};
        case HardEvent::MTE1_M:
            return {Pipe::kMte1, Pipe::kM};
        case HardEvent::M_MTE1:
            return {Pipe::kM, Pipe::kMte1};
        case HardEvent::MTE2_V:
            return {Pipe::kMte2, Pipe::kV};
        case HardEvent::V_MTE2:
            return {Pipe::kV, Pipe::kMte2};
        case HardEvent::MTE3_V:
            return {Pipe::kMte3, Pipe::kV};
        case HardEvent::V_MTE3:
            return {Pipe::kV, Pipe::kMte3};
        case HardEvent::M_V:
            return {Pipe::kM, Pipe::kV};
        case HardEvent::V_M:
            return {Pipe::kV, Pipe::kM};
        case HardEvent::V_V:
            return {Pipe::kV, Pipe::kV};
        case HardEvent::MTE3_MTE1:
            return {Pipe::kMte3, Pipe::kMte1};
        case HardEvent::MTE1_MTE3:
            return {Pipe::kMte1, Pipe::kMte3};
        case HardEvent::MTE1_V:
            return {Pipe::kMte1, Pipe::kV};
        case HardEvent::MTE2_M:
            return {Pipe::kMte2, Pipe::kM};
        case HardEvent::M_MTE2:
            return {Pipe::kM, Pipe::kMte2};
        case HardEvent::V_MTE1:
            return {Pipe::kV, Pipe::kMte1};
        case HardEvent::M_FIX:
            return {Pipe::kM, Pipe::kFix};
        case HardEvent::FIX_M:
            return {Pipe::kFix, Pipe::kM};
        case HardEvent::MTE3_MTE2:
            return {Pipe::kMte3, Pipe::kMte2};
        case HardEvent::MTE2_MTE3:
            return {Pipe::kMte2, Pipe::kMte3};
        case HardEvent::S_V:
            return {Pipe::kS, Pipe::kV};
        case HardEvent::V_S:
            return {Pipe::kV, Pipe::kS};
        case HardEvent::S_MTE2:
            return {Pipe::kS, Pipe::kMte2};
        case HardEvent::MTE2_S:
            return {Pipe::kMte2, Pipe::kS};
        case HardEvent::S_MTE3:
            return {Pipe::kS, Pipe::kMte3};
        case HardEvent::MTE3_S:
            return {Pipe::kMte3, Pipe::kS};
        case HardEvent::MTE2_FIX:
            return {Pipe::kMte2, Pipe::kFix};
        case HardEvent::FIX_MTE2:
            return {Pipe::kFix, Pipe::kMte2};
        case HardEvent::FIX_S:
            return {Pipe::kFix, Pipe::kS};
        case HardEvent::M_S:
            return {Pipe::kM, Pipe::kS};
        case HardEvent::FIX_MTE3:
            return {Pipe::kFix, Pipe::kMte3};
        case HardEvent::MTE1_FIX:
            return {Pipe::kMte1, Pipe::kFix};
        case HardEvent::FIX_MTE1:
            return {Pipe::kFix, Pipe::kMte1};
        case HardEvent::FIX_FIX:
            return {Pipe::kFix, Pipe::kFix};
        default:
            return {};
    }
}

constexpr bool HasPipe(CoreKind kind, Pipe pipe) { return SlotOf(kind, pipe) != kNoSlot; }

constexpr bool IsPipeOfACore(pipe_t pipe)
{
    return HasPipe(CoreKind::kVector, PipeOf(pipe)) || HasPipe(CoreKind::kCube, PipeOf(pipe));
}

// Whether there is a core that has both pipes; which core the kernel runs on is known at run time only.
constexpr bool IsEvent(AscendC::HardEvent event)
{
    const PipePair pipes = PipesOf(event);
    for (const CoreKind kind : {CoreKind::kVector, CoreKind::kCube}) {
        if (HasPipe(kind, pipes.from) && HasPipe(kind, pipes.to)) return true;
    }
    return false;
}

}  // namespace ascendc_host
