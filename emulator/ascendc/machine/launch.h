// Runs a kernel on the host model: the C++ entry to the machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "findings.h"
#include "interface.h"
#include "record.h"

namespace ascendc_host {

// One pointer argument of the kernel. Outputs and workspace start as garbage that counts as unwritten; inputs must
// not be written. A null `data` is passed on as nullptr.
struct GmArgument {
    std::string name;
    void* data = nullptr;
    uint64_t bytes = 0;
    Role role = Role::kIn;
};

struct LaunchOptions {
    int64_t blocks = 1;
    int64_t cores = 48;  // physical vector cores, two for each cube core; blocks beyond them run in waves
    uint64_t tilingKey = 0;
    bool autoSync = false;  // true: as if the compiler inserted the flags and barriers inside a core
    bool checks = true;     // false: order and initialisation of memory accesses are not checked
    bool trace = true;      // false: no timeline
    int hostThreads = 0;    // blocks that run at the same time; 0: as many as the host has processors, at most 4
    std::string suppress;   // "file.h:LINE" or "file.h:LINE:KIND", separated by commas: sync calls that do nothing
    std::string defect;     // the name of a planted defect; "" for none
};

struct SyncSite {
    std::string file;
    int line = 0;
    std::string kind;  // SetFlag, WaitFlag, PipeBarrier, SyncAll, CrossCoreSetFlag, CrossCoreWaitFlag
    uint64_t count = 0;
};

struct Traffic {
    std::string buffer;
    uint64_t bytesRead = 0;  // by DMA
    uint64_t bytesWritten = 0;
    uint64_t bytesPastL2 = 0;  // of both
    uint64_t readCommands = 0;
    uint64_t writeCommands = 0;
    uint64_t commandsPastL2 = 0;  // of both, with the hint to go past the L2
    uint64_t scalarReads = 0;  // GetValue on the global tensor
    uint64_t scalarWrites = 0;
};

struct RunResult {
    std::vector<Finding> findings;
    std::vector<SyncSite> syncSites;
    std::vector<Traffic> traffic;
    std::vector<CoreTrace> traces;  // by core
    int64_t cores = 0;
    uint64_t bytesThroughL2 = 0;  // copies without the hint to go past it, and the whole workspace
    bool completed = false;  // every block reached the end of the kernel
};

constexpr size_t kMaxKernelArguments = 40;

// `entry` is a function void(uint8_t*, ...) with one pointer per argument. Throws std::invalid_argument when the
// arguments or options make no launch; errors of the kernel are findings.
RunResult Launch(void* entry, const std::vector<GmArgument>& arguments, const LaunchOptions& options);

}  // namespace ascendc_host
