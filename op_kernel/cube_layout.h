// How a cube core works on scores: sizes of its buffers, and the ring in global memory through which the scores go.
//
// | buffer | bytes                  | holds                                                    |
// |--------|------------------------|----------------------------------------------------------|
// | L1     | 4 * 64 KiB             | K rows of two rounds for each of the two vector cores    |
// | L1     | 4 * 16 * D * 2         | queries of two segments for each of them                 |
// | L0A    | 4 * 16 * D * 2         | the same                                                 |
// | L0B    | 2 * 32 KiB             | K rows of half a round                                   |
// | L0C    | 4 * 16 KiB             | scores of two rounds for each of them, 16 heads          |
//
// int8 rows are half as long: a round has twice as many of them, L0C 4 * 32 KiB.
#pragma once

#include "ub_layout.h"

namespace toptheta {

constexpr uint32_t kFractal = 16;             // rows and columns of the smallest matrix that the cube multiplies
constexpr uint32_t kPairCores = 2;            // vector cores for each cube core
constexpr uint32_t kRoundBytes = 64 * 1024;   // K rows of a round
constexpr uint32_t kMostRoundRows = 256;      // of 16 bits
constexpr uint32_t kRingRounds = 4;           // that the cube core may be ahead
constexpr int64_t kMostRowStride = 65535;     // elements between two rows, as the copy to L1 can skip them

// Columns of a row in the order of fractals, which have 32 bytes of each.
TOPTHETA_DEVICE constexpr uint32_t FractalColumns(uint32_t headDim, uint32_t keyBytes)
{
    return AlignUp(headDim, kBlockBytes / keyBytes);
}

TOPTHETA_DEVICE constexpr uint32_t MostRoundRows(uint32_t keyBytes) { return 2 * kMostRoundRows / keyBytes; }

// K rows of one round of a vector core, with elements of `keyBytes`.
TOPTHETA_DEVICE constexpr uint32_t RoundRowsFor(uint32_t headDim, uint32_t keyBytes)
{
    const uint32_t half = kRoundBytes / 2 / keyBytes / FractalColumns(headDim, keyBytes) / kFractal * kFractal;
    const uint32_t most = MostRoundRows(keyBytes);
    return 2 * half < most ? 2 * half : most;
}

// Rows of products for a query head: int8 K rows are multiplied by two parts of the query (query_parts.h).
TOPTHETA_DEVICE constexpr uint32_t ProductRows(uint32_t heads, uint32_t keyBytes) { return heads * 2 / keyBytes; }

// Rows of the next round of a segment that has `left` more. The last two are of one size: the vector core works on the
// first of them while the second is multiplied.
TOPTHETA_DEVICE constexpr uint32_t NextRoundRows(uint32_t left, uint32_t roundRows)
{
    if (left <= roundRows || left >= 2 * roundRows) {
        return left < roundRows ? left : roundRows;
    }
    return AlignUp((left + 1) / 2, kFractal);
}

static_assert(RoundRowsFor(kFoldedHeadDim, 2) == FoldedRows(2) && RoundRowsFor(kFoldedHeadDim, 1) == FoldedRows(1),
              "rows that are copied as one fill a round");

// Whether K rows are copied as one (FoldsKeys) in the next round of a segment that has `left` more rows: not for the
// last two rounds, behind which nothing hides the work of the vector core.
TOPTHETA_DEVICE constexpr bool FoldsRound(uint32_t left, uint32_t keyBytes) { return left >= 2 * FoldedRows(keyBytes); }

// products of one round, of 32 bits each
TOPTHETA_DEVICE constexpr uint32_t RoundScores(uint32_t headDim, uint32_t headBlock, uint32_t keyBytes)
{
    return ProductRows(headBlock, keyBytes) * RoundRowsFor(headDim, keyBytes);
}

TOPTHETA_DEVICE constexpr uint64_t RingBytes(uint32_t headDim, uint32_t headBlock, uint32_t keyBytes)
{
    return static_cast<uint64_t>(kRingRounds) * RoundScores(headDim, headBlock, keyBytes) * sizeof(float);
}

// Shorter chunks than where the core multiplies K rows itself: the sooner a chunk is full, the less is left to do when
// the cube core has finished.
constexpr uint32_t kCubeChunkRows = 512;

// Whether the scores of a round fit a chunk.
TOPTHETA_DEVICE constexpr bool RoundFitsChunk(const UbShape& shape)
{
    const UbLayout layout = MakeUbLayout(shape, kCubeChunkRows);
    return LayoutFits(layout, shape.headDim) && layout.chunkRows >= RoundRowsFor(shape.headDim, shape.keyBytes);
}

// Query rows of a block with several tokens: `shape` with as many as the mean V rows of its tokens leave room for.
TOPTHETA_DEVICE constexpr uint32_t TokenBlockFor(uint32_t group, UbShape shape)
{
    shape.headBlock = HeadBlockFor(group, shape.headDim);
    while (shape.headBlock > 1 && !RoundFitsChunk(shape)) {
        shape.headBlock--;
    }
    return shape.headBlock;
}

// Whether the K rows of a round fit their place in L1, and its scores a chunk.
TOPTHETA_DEVICE constexpr bool RoundFits(uint32_t headDim, uint32_t keyBytes, uint32_t valueBytes, uint32_t mode)
{
    const uint32_t rows = RoundRowsFor(headDim, keyBytes);
    if (rows == 0 || rows % (2 * kFractal) != 0 || rows * FractalColumns(headDim, keyBytes) * keyBytes > kRoundBytes) {
        return false;
    }
    const uint32_t headBlock = HeadBlockFor(kMaxHeadBlock, headDim);
    const bool bfloat16 = (mode & 1) != 0;
    UbShape tokens = {headDim, headBlock, bfloat16, false, true, keyBytes, valueBytes, kMaxHeadBlock};
    tokens.headBlock = TokenBlockFor(kMaxHeadBlock, tokens);
    return RoundFitsChunk({headDim, headBlock, bfloat16, (mode & 2) != 0, true, keyBytes, valueBytes}) &&
           RoundFitsChunk(tokens);
}

TOPTHETA_DEVICE constexpr bool EveryRoundFits()
{
    for (uint32_t headDim = kFractal; headDim <= kMaxHeadDim; headDim += kFractal) {
        for (uint32_t mode = 0; mode < 4; mode++) {
            if (!RoundFits(headDim, 2, 2, mode) || !RoundFits(headDim, 1, 2, mode) || !RoundFits(headDim, 1, 1, mode)) {
                return false;
            }
        }
    }
    return true;
}

}  // namespace toptheta
