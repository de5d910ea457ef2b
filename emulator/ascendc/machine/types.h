// Plain types shared by the machine and the API headers.
#pragma once

#include <cstdint>

namespace ascendc_host {

// The kernel's source line of an API call, taken by a default argument at the call.
struct Where {
    const char* file = "";
    int line = 0;
    static constexpr Where Here(const char* file = __builtin_FILE(), int line = __builtin_LINE())
    {
        return {file, line};
    }
};

enum class Pipe : uint8_t { kS, kV, kM, kMte1, kMte2, kMte3, kFix, kCount, kAll };

// A vector core (AIV) or a cube core (AIC).
enum class CoreKind : uint8_t { kVector, kCube };

// Local memories: the Unified Buffer of a vector core, the others of a cube core.
enum class Memory : uint8_t { kUb, kL1, kL0A, kL0B, kL0C };

enum class Register : uint8_t { kGatherMaskCount, kCount };

// kGmCopy: the scalar unit waits for a DMA from global memory. kGmPreload: a line on its way into its data cache.
enum class ScalarAccess : uint8_t { kUbRead, kUbWrite, kGmHit, kGmMiss, kGmCopy, kGmPreload, kIssueOnly };

enum class KernelType : uint8_t { kAivOnly, kAicOnly, kMixAiv10, kMixAic10, kMixAic11, kMixAic12 };

}  // namespace ascendc_host
