// Where everything lies in the Unified Buffer, worked out at compile time and on the core by the same function.
//
// | buffer      | bytes                      | holds                                                             |
// |-------------|----------------------------|-------------------------------------------------------------------|
// | keyTiles    | slots * tileRows * D * 2   | ring of tiles, K and V rows; parts of other cores when combined;  |
// |             | (* 1 of int8 K)            | V tiles of 16 bits behind int8 K have half the rows               |
// | keyScales   | chunk and ring * 4, int8   | ring of scales of K rows: of a chunk and of the tiles on their way;|
// |             |                            | of a chunk with the cube                                          |
// | partials    | 16 KiB                     | partial sums of QK and PV; work rows of a chunk once QK is done   |
// | castPiece   | 16 KiB, bfloat16, int8     | K or V rows in float32; the second half of halfPiece              |
// | halfPiece   | 32 KiB, int8               | int8 rows in float16: K in two panels of columns                  |
// | scores      | headBlock * scoreRows * 4  | scaled scores of the chunk; of the whole segment in post-softmax  |
// | weights     | headBlock * chunkRows * 4  | exp(score - maximum) of the rows on the list; output on its way   |
// | rowNumbers  | chunkRows * 2              | 0, 1, 2, ...                                                      |
// | rowOffsets  | FoldedRows * 4, FoldsKeys  | where the scores of row 0, 1, 2, ... lie if K rows came as one    |
// | rowList     | chunkRows * 2              | row numbers that any head of the block keeps                      |
// | masks       | MaskSlots * chunk/8         | bits: kept by each head, by any head, work                        |
// | valueRows   | what is left, <= 32 KiB    | V rows of a list short enough for it; the scores of every other   |
// |             |                            | chunk from a cube core                                            |
// | spread      | 2.25 KiB                   | weights of 64 rows, one 32-byte block each                        |
// | query       | headBlock * D * (2 or 4)   | bfloat16 queries are kept in float32; none with the cube          |
// | firstColumns| headBlock * 256, float16   | 16 columns of each query in float32, four times; none with it     |
// | parameters  | 96 (+ headBlock * D * 2)   | per-head inputs, as copied; queries too, of bfloat16 and int8 K   |
// | partCounts  | headBlock * 32             | counts of a part on their way to the workspace                    |
// | accumulator | headBlock * D * 4          | sum of weight * V row                                             |
// | valueMean   | 2 * blockTokens * D * 4    | mean V row of the KV head, of this segment and the next; of each  |
// |             |                            | query token that a block has                                      |
// | channels    | 3 * D * 4, int8            | scales of V by channel, of this segment and the next, and of K    |
// | valueScales | the same, int8 V           | ring of scales of the V rows of the same keys                     |
// | state       | 16 * headBlock * 32        | one 32-byte block per head for each running quantity              |
// | scratch     | 1504                       | reductions and their broadcasts, a block of 1.0                   |
// | lengths     | 1 KiB (+ 512)              | a slice of the lengths and one of the starts; with several tokens |
// |             |                            | one of their numbers                                              |
// | blockTable  | 2 * 4 * 256                | rings of slices of the block table, for K and for V               |
#pragma once

#include <cstdint>

#include "work_split.h"

namespace toptheta {

constexpr uint32_t kBlockBytes = 32;
constexpr uint32_t kUbBudget = 184 * 1024 - 256;
constexpr uint32_t kMaxHeadDim = 512;
constexpr uint32_t kMaxHeadBlock = 8;
constexpr uint32_t kWideHeadDim = 256;       // above it a head block holds half as many heads
constexpr uint32_t kMinPageRows = 16;
constexpr uint32_t kPartialBytes = 16 * 1024;
constexpr uint32_t kHalfPieces = 2;          // panels of int8 K that are cast together
constexpr uint32_t kPanelColumns = 128;      // bfloat16 K is cast in column panels of at most this width
constexpr uint32_t kFirstColumnBytes = 64 * 4;
constexpr uint32_t kMostChunkRows = 1536;
constexpr uint32_t kMostInt8ChunkRows = 1792;
constexpr uint32_t kMostStoredChunkRows = 512;  // of post-softmax in two phases
constexpr uint32_t kStepRows = 256;          // rows of one score computation: 16 lanes of float32 fill `partials`
constexpr uint32_t kStateQuantities = 16;    // running quantities, one 32-byte block per head each
constexpr uint32_t kScratchBytes = 1472 + 32;  // reductions and their broadcasts, a block of 1.0
constexpr uint32_t kLengthSlice = 512;       // bytes
// a part in the workspace: maximum, total mass, kept mass and counts of each head, then its sums of V rows
constexpr uint32_t kPartBlocks = 4;
constexpr uint32_t kParameterBlocks = 3;     // inputs with a value for each head that a call has at most
constexpr uint32_t kTableSlicePages = 64;
constexpr uint32_t kTableSlices = 4;        // of each ring
constexpr uint32_t kMinValueBytes = 16 * 1024;
constexpr uint32_t kMinValueRows = 40;
constexpr uint32_t kMaxValueBytes = 32 * 1024;
constexpr uint32_t kFoldedRowBytes = 512;    // of K rows that a cube core copies as one
constexpr uint32_t kFoldedHeadDim = 128;
constexpr uint32_t kMostFoldedHeads = 4;
constexpr uint32_t kMostFoldedInt8Heads = 5;

struct UbLayout {
    uint32_t chunkRows;   // keys of one threshold test
    uint32_t scoreRows;   // keys whose scores stay in UB: chunkRows, more in post-softmax
    uint32_t slots;
    uint32_t tileRows;
    uint32_t slotBytes;
    uint32_t valueTileRows;  // V rows of a tile
    uint32_t valueListRows;  // of the longest list that `valueRows` holds
    uint32_t blockTokens;    // query tokens that the rows of a head block are of, at most
    uint32_t keyTiles;
    uint32_t keyScales;
    uint32_t partials;
    uint32_t castPiece;
    uint32_t halfPiece;
    uint32_t scores;
    uint32_t weights;
    uint32_t rowNumbers;
    uint32_t rowOffsets;
    uint32_t rowList;
    uint32_t masks;
    uint32_t valueRows;
    uint32_t spread;
    uint32_t query;
    uint32_t firstColumns;
    uint32_t parameters;
    uint32_t partCounts;
    uint32_t accumulator;
    uint32_t valueMean;
    uint32_t channels;
    uint32_t valueScales;
    uint32_t state;
    uint32_t scratch;
    uint32_t lengths;
    uint32_t blockTable;
    uint32_t total;
};

TOPTHETA_DEVICE constexpr uint32_t HeadBlockFor(uint32_t group, uint32_t headDim)
{
    const uint32_t most = headDim > kWideHeadDim ? kMaxHeadBlock / 2 : kMaxHeadBlock;
    return group < most ? group : most;
}

// Query tokens that the rows of a block are of, at most.
TOPTHETA_DEVICE constexpr uint32_t BlockTokens(uint32_t queryTokens, uint32_t headBlock)
{
    const uint32_t tokens = queryTokens < headBlock ? queryTokens : headBlock;
    return tokens > 0 ? tokens : 1;
}

// Rows of a tile: 32 KiB where possible, which a copy needs for the full transfer rate.
TOPTHETA_DEVICE constexpr uint32_t TileRowsFor(uint32_t headDim)
{
    const uint32_t rows = 16 * 1024 / headDim / 16 * 16;
    return rows < kStepRows ? rows : kStepRows;
}

TOPTHETA_DEVICE constexpr uint32_t AlignUp(uint32_t count, uint32_t alignment)
{
    return (count + alignment - 1) / alignment * alignment;
}

// Bits of the rows of a chunk.
TOPTHETA_DEVICE constexpr uint32_t MaskBytes(uint32_t chunkRows) { return AlignUp(chunkRows / 8, kBlockBytes); }

// Masks of the heads, room to join them in pairs, and one for work.
TOPTHETA_DEVICE constexpr uint32_t JoinedMasks(uint32_t heads) { return heads > 3 ? heads / 2 : 1; }
TOPTHETA_DEVICE constexpr uint32_t MaskSlots(uint32_t headBlock) { return headBlock + JoinedMasks(headBlock) + 1; }

// Whether K rows that follow one another are copied to L1 as one, RowsAsOne of them, where no others lie between them:
// the copy engine takes shorter rows below its rate. Of a round that is copied in twos, the scores are those of its
// even rows, then of its odd ones, and the vector core puts them in order, which takes it longer the more heads it has.
TOPTHETA_DEVICE constexpr bool FoldsKeys(uint32_t headDim, uint32_t headBlock, int64_t rowStride, uint32_t keyBytes)
{
    const uint32_t most = keyBytes == 1 ? kMostFoldedInt8Heads : kMostFoldedHeads;
    return rowStride == headDim && headDim == kFoldedHeadDim && headBlock <= most;
}

TOPTHETA_DEVICE constexpr uint32_t RowsAsOne(uint32_t keyBytes) { return kFoldedRowBytes / keyBytes / kFoldedHeadDim; }

// Rows of a round that is copied so.
TOPTHETA_DEVICE constexpr uint32_t FoldedRows(uint32_t keyBytes) { return 512 / keyBytes; }

// What the sizes of the buffers follow from.
struct UbShape {
    uint32_t headDim;
    uint32_t headBlock;
    bool bfloat16;
    bool postSoftmax;  // in two phases, with the scores kept in between
    bool cube = false;  // K rows are multiplied elsewhere, so the queries are not here
    uint32_t keyBytes = 2;  // of an element
    uint32_t valueBytes = 2;
    uint32_t queryTokens = 0;  // of each sequence; 0: the kernel knows a single one
};

// Slots of the ring of tiles, and keys of a chunk.
struct LayoutChoice {
    uint32_t slots;
    uint32_t chunkRows;
};

// Scales of tokens arrive with the K tiles of their rows, and must stay until the chunk of those rows is tested: a
// chunk, the tiles that are on their way, and one that is begun.
TOPTHETA_DEVICE constexpr uint32_t ScaleRows(const UbLayout& at)
{
    return at.tileRows * (at.chunkRows / at.tileRows + at.slots + 1);
}

// Places the buffers whose sizes do not depend on the room that is left; returns their end.
TOPTHETA_DEVICE constexpr uint32_t PlaceFixedBuffers(const UbShape& shape, UbLayout& at)
{
    const bool int8 = shape.keyBytes == 1;
    const bool int8Values = shape.valueBytes == 1;
    at.keyTiles = 0;
    at.partials = at.keyTiles + at.slots * at.slotBytes;
    at.castPiece = at.partials + kPartialBytes;
    const bool halves = shape.cube ? int8Values : int8;
    at.keyScales = at.castPiece + (halves ? kHalfPieces * kPartialBytes : shape.bfloat16 ? kPartialBytes : 0);
    at.halfPiece = at.castPiece;
    at.castPiece += halves ? kPartialBytes : 0;  // V rows take the first half of `halfPiece`
    at.weights = at.keyScales + (int8 ? (shape.cube ? at.chunkRows : ScaleRows(at)) * 4 : 0);
    at.rowNumbers = at.weights + shape.headBlock * at.chunkRows * 4;
    at.rowOffsets = at.rowNumbers + at.chunkRows * 2;
    const bool folds = shape.cube && FoldsKeys(shape.headDim, shape.headBlock, shape.headDim, shape.keyBytes);
    at.rowList = at.rowOffsets + (folds ? FoldedRows(shape.keyBytes) * 4 : 0);
    at.masks = at.rowList + at.chunkRows * 2;
    at.spread = at.masks + MaskSlots(shape.headBlock) * MaskBytes(at.chunkRows);
    at.query = at.spread + 64 * kBlockBytes + 256;
    const uint32_t queries = shape.cube ? 0 : shape.headBlock;
    const bool wide = shape.bfloat16 && !int8;
    at.firstColumns = at.query + queries * AlignUp(shape.headDim * (wide ? 4 : 2), kBlockBytes);
    at.parameters = at.firstColumns + (wide ? 0 : queries * kFirstColumnBytes);
    const uint32_t rawQueries = shape.bfloat16 || int8 ? queries * shape.headDim * 2 : 0;
    at.partCounts = at.parameters + kParameterBlocks * kBlockBytes + rawQueries;
    at.accumulator = at.partCounts + shape.headBlock * kBlockBytes;
    at.valueMean = at.accumulator + shape.headBlock * shape.headDim * 4;
    at.blockTokens = BlockTokens(shape.queryTokens, shape.headBlock);
    at.channels = at.valueMean + 2 * at.blockTokens * shape.headDim * 4;
    at.valueScales = at.channels + (int8 ? 3 * shape.headDim * 4 : 0);
    at.state = at.valueScales + (int8Values ? ScaleRows(at) * 4 : 0);
    at.scratch = at.state + kStateQuantities * shape.headBlock * kBlockBytes;
    at.lengths = at.scratch + kScratchBytes;
    at.blockTable = at.lengths + (shape.queryTokens > 0 ? 3 : 2) * kLengthSlice;
    return at.blockTable + 2 * kTableSlices * kTableSlicePages * 4;
}

// Least room for V rows, which the scores of every other chunk from a cube core take too. Beside a long chunk, only the
// list of the last chunk, which is short, needs a place there; longer lists go through the ring.
TOPTHETA_DEVICE constexpr uint32_t MinValueBytes(uint32_t chunkRows, uint32_t chunkScores, uint32_t rowBytes)
{
    const uint32_t least = chunkRows >= kMostChunkRows ? kMinValueRows * rowBytes : kMinValueBytes;
    return least > chunkScores ? least : chunkScores;
}

// Places all buffers; `valueListRows` 0 marks a choice that does not fit.
TOPTHETA_DEVICE constexpr UbLayout PlaceBuffers(const UbShape& shape, const LayoutChoice& choice)
{
    UbLayout at = {};
    at.slots = choice.slots;
    at.chunkRows = choice.chunkRows;
    at.scoreRows = choice.chunkRows;
    at.tileRows = TileRowsFor(shape.headDim);
    const uint32_t tileBytes = shape.cube ? shape.valueBytes : shape.keyBytes;
    at.slotBytes = at.tileRows * shape.headDim * tileBytes;
    at.valueTileRows = at.tileRows * tileBytes / shape.valueBytes;
    at.scores = PlaceFixedBuffers(shape, at);
    const uint32_t chunkScores = shape.headBlock * choice.chunkRows * 4;
    uint32_t end = at.scores + chunkScores;
    const uint32_t rowBytes = shape.headDim * shape.valueBytes;
    // two products for each score
    const uint32_t arrivals = shape.cube && shape.keyBytes == 1 ? 2 * chunkScores : chunkScores;
    const uint32_t least = MinValueBytes(choice.chunkRows, arrivals, rowBytes);
    if (end + least > kUbBudget) {
        return at;
    }
    uint32_t left = kUbBudget - end;
    if (shape.postSoftmax) {
        const uint32_t more = (left - least) / chunkScores;
        at.scoreRows += more * choice.chunkRows;
        end += more * chunkScores;
        left = least;
    }
    at.valueRows = end;
    left = left < kMaxValueBytes ? left : kMaxValueBytes;
    at.valueListRows = left / rowBytes / 8 * 8;
    const uint32_t valueBytes = at.valueListRows * rowBytes;
    at.total = end + (valueBytes > arrivals ? valueBytes : arrivals);
    return at;
}

// The first choice that fits: a deep ring keeps the copies busy, a long chunk spreads the cost of a threshold test. The
// host makes it and hands it to the cores. In post-softmax, room for scores is worth more than a long chunk.
TOPTHETA_DEVICE constexpr LayoutChoice ChooseLayout(const UbShape& shape, uint32_t mostChunkRows = kMostInt8ChunkRows)
{
    if (shape.keyBytes == 2 && mostChunkRows > kMostChunkRows) {
        mostChunkRows = kMostChunkRows;
    }
    constexpr LayoutChoice choices[] = {{4, kMostInt8ChunkRows},
                                        {4, 1536},
                                        {4, 1024},
                                        {4, 512},
                                        {3, 1024},
                                        {3, 512},
                                        {2, 1024},
                                        {2, 512},
                                        {3, 256},
                                        {2, 256},
                                        {2, 128}};
    for (const LayoutChoice& choice : choices) {
        const bool tooLong = choice.chunkRows > (shape.postSoftmax ? kMostStoredChunkRows : mostChunkRows) ||
                             shape.headBlock * choice.chunkRows * 4 > kPartialBytes;  // a work row for each head
        if (!tooLong && PlaceBuffers(shape, choice).valueListRows > 0) {
            return choice;
        }
    }
    return {0, 0};
}

TOPTHETA_DEVICE constexpr UbLayout MakeUbLayout(const UbShape& shape, uint32_t mostChunkRows = kMostInt8ChunkRows)
{
    return PlaceBuffers(shape, ChooseLayout(shape, mostChunkRows));
}

// Whether the scores of a whole segment stay in UB between the two phases of post-softmax. Each chunk is padded to 64
// lanes from wherever it begins, so one repeat must remain.
TOPTHETA_DEVICE constexpr bool ScoresStayInUb(uint32_t rows, const UbLayout& layout)
{
    return rows + 64 <= layout.scoreRows;
}

TOPTHETA_DEVICE constexpr bool LayoutFits(const UbLayout& layout, uint32_t headDim)
{
    const bool outputFits = layout.chunkRows * 2 >= headDim;  // rows leave by way of `weights`
    return layout.valueListRows > 0 && layout.total <= kUbBudget && outputFits;
}

// Every variant that tiling can ask for has a layout inside the budget.
TOPTHETA_DEVICE constexpr bool EveryLayoutFits()
{
    for (uint32_t headDim = 16; headDim <= kMaxHeadDim; headDim += 16) {
        for (uint32_t headBlock = 1; headBlock <= HeadBlockFor(kMaxHeadBlock, headDim); headBlock++) {
            for (uint32_t mode = 0; mode < 12; mode++) {
                const uint32_t keyBytes = mode < 4 ? 2 : 1;
                const uint32_t valueBytes = mode < 8 ? 2 : 1;
                const UbShape shape = {headDim, headBlock, (mode & 1) != 0, (mode & 2) != 0,
                                       false,   keyBytes,  valueBytes};
                if (!LayoutFits(MakeUbLayout(shape), headDim)) {
                    return false;
                }
            }
        }
    }
    return true;
}

}  // namespace toptheta
