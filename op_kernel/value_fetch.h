// Copies of the V rows on a list, two with one command.
#pragma once

#include "cache_rows.h"
#include "chunk.h"

namespace toptheta {

// Rows [first, end) of a list, an even `first`, to consecutive rows of `to`. Numbers come in pairs, two 16-bit numbers
// in one scalar read; an odd row at the end waits until the list ends there.
template <typename T>
TOPTHETA_DEVICE inline uint32_t FetchListed(UbMap& ub, CacheRows<T>& rows, const LocalTensor<T>& to, uint32_t headDim,
                                            const RowList& list, uint32_t first, uint32_t end)
{
    LocalTensor<uint32_t> pairs = ub.RowList().template ReinterpretCast<uint32_t>();
    uint32_t entry = first;
    for (; entry + 2 <= end; entry += 2) {
        const uint32_t pair = pairs.GetValue(entry / 2);
        rows.LoadPair(to[(entry - first) * headDim], list.chunkBegin + (pair & 0xffff), list.chunkBegin + (pair >> 16));
    }
    if (entry < end && end == list.count) {
        rows.LoadRow(to[(entry - first) * headDim], list.chunkBegin + ub.RowList().GetValue(entry));
        entry++;
    }
    return entry;
}

}  // namespace toptheta
