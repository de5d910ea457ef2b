// Stands for CANN's header of the same name, which runs a kernel on the CPU: runs it on the host model.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "machine/launch.h"

#define __global__
#define __aicore__
#define GM_ADDR uint8_t*

enum class KernelMode { MIX_MODE, AIC_MODE, AIV_MODE };

namespace AscendC {

inline std::map<const void*, uint64_t>& Allocated()
{
    static std::map<const void*, uint64_t> sizes;
    return sizes;
}

inline void* GmAlloc(uint64_t bytes)
{
    void* data = std::calloc(1, bytes);
    Allocated()[data] = bytes;
    return data;
}

inline void GmFree(void* data)
{
    Allocated().erase(data);
    std::free(data);
}

inline void SetKernelMode(KernelMode) {}  // the host model starts the cores that the tiling key asks for

}  // namespace AscendC

inline uint64_t& TilingKeyOfNextRun()
{
    static uint64_t key = 0;
    return key;
}

// Fails the test for every finding of the host model.
inline void RunOnHostModel(void* kernel, int64_t blocks, const std::vector<uint8_t*>& pointers)
{
    std::vector<ascendc_host::GmArgument> arguments;
    for (uint8_t* pointer : pointers) {
        const uint64_t bytes = pointer == nullptr ? 0 : AscendC::Allocated().at(pointer);
        arguments.push_back({std::to_string(arguments.size()), pointer, bytes, ascendc_host::Role::kInOut});
    }
    ascendc_host::LaunchOptions options;
    options.blocks = blocks;
    options.tilingKey = TilingKeyOfNextRun();
    const ascendc_host::RunResult run = ascendc_host::Launch(kernel, arguments, options);
    EXPECT_TRUE(run.completed);
    for (const ascendc_host::Finding& finding : run.findings) {
        ADD_FAILURE() << finding.file << ":" << finding.line << " " << finding.call << ": " << finding.what;
    }
}

#define ICPU_SET_TILING_KEY(key) TilingKeyOfNextRun() = (key)
#define ICPU_RUN_KF(kernel, blocks, ...) RunOnHostModel(reinterpret_cast<void*>(kernel), blocks, {__VA_ARGS__})
