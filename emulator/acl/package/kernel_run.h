// Runs a kernel library of the host model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ascendc/machine/interface.h"

namespace acl_emulator {

// One launch. Copies may run at different times, as in a graph that is replayed.
struct KernelRun {
    const char* name = nullptr;
    const char* library = nullptr;
    const char* entry = nullptr;
    std::vector<ascendc_host::CArgument> arguments;  // all but the tiling, in the kernel's order
    std::vector<uint8_t> tiling;
    int64_t blocks = 0;
    uint64_t tilingKey = 0;

    void Add(const char* argument, void* data, uint64_t bytes, ascendc_host::Role role)
    {
        arguments.push_back({argument, data, bytes, static_cast<int32_t>(role)});
    }

    // The findings of the host model as text; nothing if there are none.
    std::string operator()() const;
};

}  // namespace acl_emulator
