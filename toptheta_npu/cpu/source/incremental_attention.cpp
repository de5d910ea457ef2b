// The entry points of the native CPU backend, for one element type: TOPTHETA_ELEMENT is Float32, Float16 or BFloat16.
#include <cstdint>
#include <new>

#include "arguments.h"
#include "elements.h"
#include "step.h"
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

// By which the caller knows that it packs the same struct.
TOPTHETA_EXPORT int64_t toptheta_size_of_arguments() { return sizeof(toptheta::Arguments); }
