// Runs a kernel library of the host model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace acl_emulator {

enum class GmRole : int32_t { kIn, kOut, kInOut, kWorkspace };  // as in the machine's launch.h

struct GmRange {
    const char* name;
    void* data;
    uint64_t bytes;
    GmRole role;
};

// One launch. Copies may run at different times, as in a graph that is replayed.
struct KernelRun {
    const char* name = nullptr;
    const char* library = nullptr;
    const char* entry = nullptr;
    std::vector<GmRange> arguments;  // all but the tiling, in the kernel's order
    std::vector<uint8_t> tiling;
    int64_t blocks = 0;
    uint64_t tilingKey = 0;

    // The findings of the host model as text; nothing if there are none.
    std::string operator()() const;
};

}  // namespace acl_emulator
