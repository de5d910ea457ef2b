// The entry points of the native CPU backend, for one element type: TOPTHETA_ELEMENT is Float32, Float16 or BFloat16.
// They return a status.
#include <cstdint>
#include <new>

#include "arguments.h"
#include "elements.h"
#include "int8_rows.h"
#include "serving.h"
#include "step.h"

#define TOPTHETA_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Element = toptheta::TOPTHETA_ELEMENT;

// Runs what says whether the values that it was given are good.
template <class Function>
int32_t status_of(const Function& function)
{
    try {
        return function() ? toptheta::kDone : toptheta::kBadValues;
    } catch (const std::bad_alloc&) {
        return toptheta::kOutOfMemory;
    }
}

}  // namespace

TOPTHETA_EXPORT int32_t toptheta_incremental_attention(const toptheta::Arguments* arguments)
{
    return status_of([=] { return toptheta::run_step<Element>(*arguments); });
}

TOPTHETA_EXPORT int32_t toptheta_page_sums(const toptheta::PageSumsOfLayer* layer, const toptheta::WrittenRows* written,
                                           float* mean)
{
    return status_of([=] { return toptheta::make_sums<Element>(*layer, *written, mean); });
}

TOPTHETA_EXPORT int32_t toptheta_decode_layer(const toptheta::DecodingLayer* layer, const toptheta::DecodingRows* rows,
                                              const void* query, int64_t sequence_stride, int64_t head_stride,
                                              int64_t element_stride, void* out)
{
    const toptheta::TensorView view{query, sequence_stride, head_stride, 0, element_stride};
    return status_of([=] { return toptheta::decode_layer<Element>(*layer, *rows, view, out); });
}

TOPTHETA_EXPORT int32_t toptheta_round_rows(const toptheta::RowsToRound* rows)
{
    toptheta::RowRounder<Element>(*rows).run();
    return toptheta::kDone;
}

// By which the caller knows that it packs the same structs.
TOPTHETA_EXPORT int64_t toptheta_size_of_structs()
{
    return sizeof(toptheta::DecodingLayer) + sizeof(toptheta::DecodingRows) + sizeof(toptheta::RowsToRound);
}
