// Where operands must lie, and the ranges of the fields of parameter structures.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "machine/core.h"
#include "machine/local_memory.h"
#include "vector_shape.h"

namespace ascendc_host {

inline std::string DescribeMemory(Memory memory)
{
    const std::string name = RegionOf(memory).name;
    switch (memory) {
        case Memory::kL1:
            return name + " (A1 or B1)";
        case Memory::kL0A:
            return name + " (A2)";
        case Memory::kL0B:
            return name + " (B2)";
        case Memory::kL0C:
            return name + " (CO1)";
        default:
            return name + " (VECIN, VECOUT or VECCALC)";
    }
}

inline bool RequireMemory(const CallSite& site, const LocalView& view, const char* operand,
                          std::initializer_list<Memory> allowed)
{
    const Memory memory = Core::Current().MemoryOf(view);
    std::string wanted;
    for (const Memory candidate : allowed) {
        if (memory == candidate) return true;
        wanted += (wanted.empty() ? "" : " or ") + DescribeMemory(candidate);
    }
    site.Report(Check::kParameter, std::string(operand) + " lies in " + DescribeMemory(memory),
                std::string("give ") + site.call + " a tensor in " + wanted);
    return false;
}

// A field of a parameter structure with its documented range.
inline bool RequireRange(const CallSite& site, const char* field, uint64_t value, uint64_t least, uint64_t most)
{
    if (value >= least && value <= most) return true;
    site.Report(Check::kParameter, std::string(field) + " is " + std::to_string(value),
                std::string("give a ") + field + " from " + std::to_string(least) + " to " + std::to_string(most));
    return false;
}

}  // namespace ascendc_host
