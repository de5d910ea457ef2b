// The entry points of the native CPU backend, for one element type: TOPTHETA_ELEMENT is Float32, Float16 or BFloat16.
#include <cstdint>
#include <new>

#include "arguments.h"
#include "counting.h"
#include "elements.h"
#include "packing.h"
#include "step.h"
#include "stream.h"
#include "value_checks.h"

#define TOPTHETA_EXPORT extern "C" __attribute__((visibility("default")))

// A decode step. The values in lengths, starts, thresholds, masses and block tables are checked first; where one is
// wrong nothing is written. Scales of int8 rows are checked as they are read, so there outputs may be written.
TOPTHETA_EXPORT int32_t toptheta_incremental_attention(const toptheta::Arguments* arguments)
{
    if (!toptheta::are_values_good(*arguments)) {
        return toptheta::kBadValues;
    }
    try {
        const bool is_good = toptheta::Step<toptheta::TOPTHETA_ELEMENT>(*arguments).run();
        return is_good ? toptheta::kDone : toptheta::kBadValues;
    } catch (const std::bad_alloc&) {
        return toptheta::kOutOfMemory;
    }
}

// Reads memory on the same threads and from the same queue as a decode step; gives the largest float in it.
TOPTHETA_EXPORT float toptheta_read(const void* data, int64_t bytes, int64_t threads,
                                    toptheta::RunInParallel run_in_parallel)
{
    return toptheta::read_all(data, bytes, threads, run_in_parallel);
}

// The smallest visible and the largest element of `count` rows of `width` elements.
TOPTHETA_EXPORT void toptheta_row_ranges(const float* rows, int64_t count, int64_t width, float* smallest,
                                         float* largest)
{
    for (int64_t row = 0; row < count; ++row) {
        toptheta::row_range(rows + row * width, width, smallest[row], largest[row]);
    }
}

// Adds the rows' elements to `counts` [cells, 113]; row i belongs to cell `cells[i]`, whose bins begin at `first[i]`.
TOPTHETA_EXPORT void toptheta_count(const float* rows, int64_t count, int64_t width, const int64_t* cells,
                                    const float* scale, const float* first, float finest, int64_t* counts)
{
    for (int64_t row = 0; row < count; ++row) {
        const auto add = scale[row] < 1.0F ? toptheta::count_row<true> : toptheta::count_row<false>;
        add(rows + row * width, width, scale[row], first[row], finest, counts + cells[row] * toptheta::kCounters);
    }
}

// Rounds rows of K or V to int8.
TOPTHETA_EXPORT void toptheta_pack_rows(const toptheta::RowsToPack* rows)
{
    toptheta::pack_rows<toptheta::TOPTHETA_ELEMENT>(*rows);
}

// By which the caller knows that it packs the same struct.
TOPTHETA_EXPORT int64_t toptheta_size_of_arguments() { return sizeof(toptheta::Arguments); }
