// What calls that the toolkit composes of several instructions share: flags and barriers that stand on no line of the
// kernel, and operands that may not touch.
#pragma once

#include <string>

#include "machine/core.h"
#include "vector_operand.h"
#include "vector_overlap.h"
#include "vector_shape.h"

namespace ascendc_host {

// Where the toolkit itself synchronises. A mutation test of a kernel leaves these alone.
constexpr Where kInsideLibrary{"kernel_operator.h", 0};

// A flag set and waited for at once, with an event id that is free.
inline void SetAndWait(Pipe from, Pipe to)
{
    Core& core = Core::Current();
    const int id = core.AllocateEventId(from, to, kInsideLibrary);
    core.SetFlag(from, to, id, kInsideLibrary);
    core.WaitFlag(from, to, id, kInsideLibrary);
    core.ReleaseEventId(from, to, id);
}

inline void RequireDisjoint(const CallSite& site, const VectorOperand& written, const Span& writtenSpan,
                            const VectorOperand& read, const Span& readSpan)
{
    if (!RangesMeet(written.view.offset + writtenSpan.first, written.view.offset + writtenSpan.end,
                    read.view.offset + readSpan.first, read.view.offset + readSpan.end)) {
        return;
    }
    site.Report(Check::kOverlap, std::string(read.name) + " and " + written.name + " share bytes",
                "give the call a destination that does not touch its sources");
}

}  // namespace ascendc_host
