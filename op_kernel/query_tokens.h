// Several query tokens of a sequence in one step: where their rows lie, and which keys each of them sees.
//
// The query rows of a KV head are those of all its heads and tokens, the tokens of a head side by side: the order of
// [B, Hq, Sq, D]. They take the places that the heads of a group have with one token. The tokens are the last of their
// sequence, so that each sees one key more than the token before it.
#pragma once

#include "kernel_common.h"

namespace toptheta {

// The query rows [firstHead, firstHead + heads) of one sequence and their KV head.
struct HeadRange {
    uint32_t batch;
    uint32_t kvHead;
    uint32_t firstHead;
    uint32_t heads;
};

// `kTokens`: there may be several tokens, whose head blocks differ by one row at most.
template <bool kTokens>
TOPTHETA_DEVICE inline HeadRange HeadsOf(const TilingData& tiling, const Segment& segment)
{
    const uint32_t group = tiling.numHeads / tiling.numKeyValueHeads;
    if constexpr (kTokens) {
        const uint32_t begin = segment.headBlock * group / tiling.headBlocks;
        const uint32_t end = (segment.headBlock + 1) * group / tiling.headBlocks;
        return {segment.batch, segment.kvHead, segment.kvHead * group + begin, end - begin};
    }
    const uint32_t first = segment.headBlock * tiling.headBlock;
    return {segment.batch, segment.kvHead, segment.kvHead * group + first, Least(tiling.headBlock, group - first)};
}

// The first of them among the rows [B, Hq] or [B, Hq, Sq] of numbers.
TOPTHETA_DEVICE inline uint64_t FirstRow(const TilingData& tiling, const HeadRange& range)
{
    return static_cast<uint64_t>(range.batch) * tiling.numHeads + range.firstHead;
}

// Rows of query or output that lie a fixed step apart.
struct RowRun {
    uint32_t first;  // among the rows of the range
    uint32_t rows;
    uint64_t element;  // of the tensor, where the first of them begins
    uint32_t step;     // elements from one to the next
};

// The rows of a range in query or output, run by run. `kTokens`: there may be several tokens.
template <bool kTokens>
class RowRuns {
public:
    TOPTHETA_DEVICE inline RowRuns(const TilingData& tiling, const HeadRange& range) : tiling_(tiling), range_(range) {}

    TOPTHETA_DEVICE inline bool Next(RowRun& run)
    {
        if (done_ == range_.heads) {
            return false;
        }
        run = {done_, range_.heads, FirstRow(tiling_, range_) * tiling_.headDim, tiling_.headDim};
        if constexpr (kTokens) {
            if (tiling_.tokensFirst) {
                run = OfOneHead();
            }
        }
        done_ += run.rows;
        return true;
    }

private:
    static constexpr uint32_t kMostStep = 65535;  // elements, as the copy to L1 can skip them

    // The tokens of the next head, which have all heads of a token between them.
    TOPTHETA_DEVICE inline RowRun OfOneHead() const
    {
        const uint32_t tokens = tiling_.queryTokens;
        const uint32_t heads = tiling_.numHeads / tokens;
        const uint32_t head = (range_.firstHead + done_) / tokens;
        const uint32_t token = (range_.firstHead + done_) % tokens;
        const uint32_t step = heads * tiling_.headDim;
        const uint32_t rows = step > kMostStep ? 1 : Least(tokens - token, range_.heads - done_);
        const uint64_t row = (static_cast<uint64_t>(range_.batch) * tokens + token) * heads + head;
        return {done_, rows, row * tiling_.headDim, step};
    }

    const TilingData& tiling_;
    const HeadRange range_;
    uint32_t done_ = 0;
};

// How many keys each query row of a range sees, the first ones of its sequence.
template <bool kTokens>
class VisibleKeys {
public:
    // `keys` of the sequence; the last `tokens` of them are those of its real query tokens.
    TOPTHETA_DEVICE inline void Begin(const TilingData& tiling, const HeadRange& range, uint32_t keys, uint32_t tokens)
    {
        keys_ = keys;
        if constexpr (kTokens) {
            queryTokens_ = tiling.queryTokens;
            firstToken_ = range.firstHead % tiling.queryTokens;
            tokens_ = tokens;
        }
    }

    // 0 of a row behind the real tokens.
    TOPTHETA_DEVICE inline uint32_t Of(uint32_t head) const
    {
        if constexpr (!kTokens) {
            return keys_;
        }
        const uint32_t token = (firstToken_ + head) % queryTokens_;
        return token < tokens_ ? keys_ - tokens_ + 1 + token : 0;
    }

    // Whether every row sees the keys in front of `end`.
    TOPTHETA_DEVICE inline bool AllSee(uint32_t end) const
    {
        return !kTokens || (tokens_ == queryTokens_ && end + tokens_ <= keys_ + 1);
    }

private:
    uint32_t keys_ = 0;
    uint32_t queryTokens_ = 1;
    uint32_t firstToken_ = 0;
    uint32_t tokens_ = 1;
};

}  // namespace toptheta
