// The entry points of the native CPU backend, for one element type: TOPTHETA_ELEMENT is Float32, Float16 or BFloat16.
#include <cstdint>
#include <new>

#include "arguments.h"
#include "elements.h"
#include "step.h"
#include "stream.h"
#include "value_checks.h"

#define TOPTHETA_EXPORT extern "C" __attribute__((visibility("default")))

// A decode step. The values in lengths, starts, thresholds, masses and block tables are checked first; where one is
// wrong nothing is written.
TOPTHETA_EXPORT int32_t toptheta_incremental_attention(const toptheta::Arguments* arguments)
{
    if (!toptheta::are_values_good(*arguments)) {
        return toptheta::kBadValues;
    }
    try {
        toptheta::Step<toptheta::TOPTHETA_ELEMENT>(*arguments).run();
    } catch (const std::bad_alloc&) {
        return toptheta::kOutOfMemory;
    }
    return toptheta::kDone;
}

// Reads memory on the same threads and from the same queue as a decode step; gives the largest float in it.
TOPTHETA_EXPORT float toptheta_read(const void* data, int64_t bytes, int64_t threads,
                                    toptheta::RunInParallel run_in_parallel)
{
    return toptheta::read_all(data, bytes, threads, run_in_parallel);
}

// By which the caller knows that it packs the same struct.
TOPTHETA_EXPORT int64_t toptheta_size_of_arguments() { return sizeof(toptheta::Arguments); }
