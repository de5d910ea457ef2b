// What is handed to a loaded kernel library to launch it; emulator/ascendc/library.py mirrors the structs.
#pragma once

#include <cstdint>

namespace ascendc_host {

enum class Role : uint8_t { kIn, kOut, kInOut, kWorkspace };

struct CArgument {
    const char* name;
    void* data;
    uint64_t bytes;
    int32_t role;  // a Role
};

struct COptions {
    int64_t blocks;
    int64_t cores;
    uint64_t tilingKey;
    int32_t autoSync;
    int32_t checks;
    int32_t trace;
    int32_t hostThreads;
    const char* suppress;
    const char* defect;  // its name; "" for none
};

}  // namespace ascendc_host
