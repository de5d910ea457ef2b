// The mask register of the vector unit, which a kernel sets by calls of their own.
#pragma once

#include <cstdint>

#include "constants.h"
#include "enums.h"
#include "machine/core.h"

namespace ascendc_host {

// Which lanes of a repeat take part (norm mode), or how many elements in all (counter mode, in `low`).
struct MaskRegister {
    bool counter = false;
    uint64_t high = ~0ull;
    uint64_t low = ~0ull;
};

// One core runs on a host thread at a time. TPipe resets the register, as the start code of the device does.
inline MaskRegister& CurrentMask()
{
    static thread_local MaskRegister mask;
    return mask;
}

inline void RecordScalarIssue(const char* call, Where where)
{
    Instruction instruction(Pipe::kS, call, where);
    instruction.ScalarCost(ScalarAccess::kIssueOnly);
}

// The bits of a prefix of `lanes` lanes, of at most 128.
inline MaskRegister PrefixMask(uint64_t lanes)
{
    MaskRegister mask;
    mask.low = lanes >= 64 ? ~0ull : (1ull << lanes) - 1;
    mask.high = lanes >= 128 ? ~0ull : lanes > 64 ? (1ull << (lanes - 64)) - 1 : 0;
    return mask;
}

}  // namespace ascendc_host

namespace AscendC {

using ascendc_host::Where;

inline void SetMaskCount(Where where = Where::Here())
{
    ascendc_host::RecordScalarIssue("SetMaskCount", where);
    ascendc_host::CurrentMask().counter = true;
}

inline void SetMaskNorm(Where where = Where::Here())
{
    ascendc_host::RecordScalarIssue("SetMaskNorm", where);
    ascendc_host::CurrentMask().counter = false;
}

// In counter mode `maskLow` is the number of elements.
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(const uint64_t maskHigh, const uint64_t maskLow, Where where = Where::Here())
{
    ascendc_host::RecordScalarIssue("SetVectorMask", where);
    ascendc_host::MaskRegister& mask = ascendc_host::CurrentMask();
    mask.high = maskHigh;
    mask.low = maskLow;
}

inline void ResetMask(Where where = Where::Here())
{
    ascendc_host::RecordScalarIssue("ResetMask", where);
    ascendc_host::CurrentMask().high = ~0ull;
    ascendc_host::CurrentMask().low = ~0ull;
}

}  // namespace AscendC
