// The scores of keys for some rows of a query, however K lies and whatever its type is.
#pragma once

#include <cstdint>

#include "arguments.h"
#include "columns.h"
#include "int8_scores.h"
#include "query_tokens.h"
#include "rows.h"
#include "scores.h"

namespace toptheta {

// Writes the scores of the first `count` keys for at most kMostRows rows, [rows][stride], padded with -inf to whole
// vectors, and their maxima. Keys by columns have to be neighbours. False: a scale that was read is negative or not
// finite.
template <class Element>
bool compute_row_scores(const Arguments& a, const QueryRows& rows, int64_t key_value_head, const Keys& keys, int count,
                        float* scores, int64_t stride, float* maxima)
{
    if (a.key_scale.are_there()) {
        Int8Scores<Element> tiles(a, rows, key_value_head);
        write_scores(tiles, rows.count(), keys, count, scores, stride, maxima);
        return !tiles.has_bad_scale();
    }
    const Rows<Element> cached(a, a.key, rows.sequence, key_value_head);
    const PackedQuery<Element> query(a, rows);
    const float scale = static_cast<float>(a.scale);
    if (a.key.lies_by_columns()) {
        const int padded = (count + kLanes - 1) / kLanes * kLanes;
        ColumnScores<Element>(cached, query, static_cast<int>(a.head_dim), scale)
            .compute(keys.first, count, scores, stride);
        for (int row = 0; row < rows.count(); ++row) {
            maxima[row] = pad_scores(scores + row * stride, count, padded);
        }
        return true;
    }
    TileScores<Element> tiles(cached, query, scale);
    write_scores(tiles, rows.count(), keys, count, scores, stride, maxima);
    return true;
}

}  // namespace toptheta
