// Where everything lies in the Unified Buffer, worked out at compile time and on the core by the same function.
//
// | buffer      | bytes                      | holds                                                             |
// |-------------|----------------------------|-------------------------------------------------------------------|
// | keyTiles    | slots * tileRows * D * 2   | ring of K tiles; parts of other cores while they are combined     |
// | partials    | 16 KiB                     | partial sums of QK and PV; work row of a chunk once QK is done    |
// | castPiece   | 16 KiB, bfloat16 only      | K or V rows in float32                                            |
// | scores      | headBlock * scoreRows * 4  | scaled scores of the chunk; of the whole segment in post-softmax  |
// | weights     | headBlock * chunkRows * 4  | exp(score - maximum) of the rows on the list; output on its way   |
// | rowNumbers  | chunkRows * 2              | 0, 1, 2, ...                                                      |
// | rowList     | chunkRows * 2              | row numbers that any head of the block keeps                      |
// | masks       | (headBlock + 2) * chunk/8  | bits: kept by each head, by any head, work                        |
// | valueRows   | what is left, <= 32 KiB    | V rows of one round                                               |
// | spread      | 2.25 KiB                   | weights of 64 rows, one 32-byte block each                        |
// | query       | headBlock * D * (2 or 4)   | bfloat16 queries are kept in float32                              |
// | parameters  | 96 (+ headBlock * D * 2)   | per-head inputs, bfloat16 queries, as copied                      |
// | partCounts  | headBlock * 32             | counts of a part on their way to the workspace                    |
// | accumulator | headBlock * D * 4          | sum of weight * V row                                             |
// | valueMean   | 2 * D * 4                  | mean V row of the KV head, of this segment and the next           |
// | state       | 16 * headBlock * 32        | one 32-byte block per head for each running quantity              |
// | scratch     | 1152                       | reductions and their broadcasts                                   |
// | lengths     | 1 KiB                      | a slice of the lengths and one of the starts                      |
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
constexpr uint32_t kPanelColumns = 128;      // bfloat16 K is cast in column panels of at most this width
constexpr uint32_t kStepRows = 256;          // rows of one score computation: 16 lanes of float32 fill `partials`
constexpr uint32_t kStateQuantities = 16;    // running quantities, one 32-byte block per head each
constexpr uint32_t kScratchBytes = 1152;      // reductions and their broadcasts
constexpr uint32_t kLengthSlice = 512;       // bytes
// a part in the workspace: maximum, total mass, kept mass and counts of each head, then its sums of V rows
constexpr uint32_t kPartBlocks = 4;
constexpr uint32_t kParameterBlocks = 3;     // thresholds, discarded mass, log-sum-exp
constexpr uint32_t kTableSlicePages = 64;
constexpr uint32_t kTableSlices = 4;        // of each ring
constexpr uint32_t kMinValueBytes = 16 * 1024;
constexpr uint32_t kMaxValueBytes = 32 * 1024;

struct UbLayout {
    uint32_t chunkRows;   // keys of one threshold test
    uint32_t scoreRows;   // keys whose scores stay in UB: chunkRows, more in post-softmax
    uint32_t slots;
    uint32_t tileRows;
    uint32_t valueRowsPerRound;
    uint32_t keyTiles;
    uint32_t partials;
    uint32_t castPiece;
    uint32_t scores;
    uint32_t weights;
    uint32_t rowNumbers;
    uint32_t rowList;
    uint32_t masks;
    uint32_t valueRows;
    uint32_t spread;
    uint32_t query;
    uint32_t parameters;
    uint32_t partCounts;
    uint32_t accumulator;
    uint32_t valueMean;
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

// Rows of a K tile: 32 KiB where possible, which a copy needs for the full transfer rate.
TOPTHETA_DEVICE constexpr uint32_t TileRowsFor(uint32_t headDim)
{
    const uint32_t rows = 16 * 1024 / headDim / 16 * 16;
    return rows < kStepRows ? rows : kStepRows;
}


TOPTHETA_DEVICE constexpr uint32_t AlignUp(uint32_t bytes, uint32_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

// Bytes of everything but `scores`, `weights` and `valueRows`, whose sizes depend on what is left.
struct UbShape {
    uint32_t headDim;
    uint32_t headBlock;
    bool bfloat16;
    bool postSoftmax;
};

// Places the buffers for one choice of ring and chunk; `valueBytes` 0 marks a choice that does not fit.
TOPTHETA_DEVICE constexpr UbLayout PlaceBuffers(const UbShape& shape, uint32_t slots, uint32_t chunkRows)
{
    const uint32_t rowBytes = shape.headDim * 2;
    UbLayout at = {};
    at.chunkRows = chunkRows;
    at.scoreRows = chunkRows;
    at.slots = slots;
    at.tileRows = TileRowsFor(shape.headDim);
    uint32_t end = 0;
    at.keyTiles = end;
    end += slots * at.tileRows * rowBytes;
    at.partials = end;
    end += kPartialBytes;
    at.castPiece = end;
    end += shape.bfloat16 ? kPartialBytes : 0;
    at.weights = end;
    end += shape.headBlock * chunkRows * 4;
    at.rowNumbers = end;
    end += chunkRows * 2;
    at.rowList = end;
    end += chunkRows * 2;
    at.masks = end;
    end += (shape.headBlock + 2) * AlignUp(chunkRows / 8, kBlockBytes);
    at.spread = end;
    end += 64 * kBlockBytes + 256;
    at.query = end;
    end += shape.headBlock * AlignUp(shape.headDim * (shape.bfloat16 ? 4 : 2), kBlockBytes);
    at.parameters = end;
    end += kParameterBlocks * kBlockBytes + (shape.bfloat16 ? shape.headBlock * rowBytes : 0);
    at.partCounts = end;
    end += shape.headBlock * kBlockBytes;
    at.accumulator = end;
    end += shape.headBlock * shape.headDim * 4;
    at.valueMean = end;
    end += 2 * shape.headDim * 4;
    at.state = end;
    end += kStateQuantities * shape.headBlock * kBlockBytes;
    at.scratch = end;
    end += kScratchBytes;
    at.lengths = end;
    end += 2 * kLengthSlice;
    at.blockTable = end;
    end += 2 * kTableSlices * kTableSlicePages * 4;
    at.scores = end;
    const uint32_t chunkScores = shape.headBlock * chunkRows * 4;
    end += chunkScores;
    if (end + kMinValueBytes > kUbBudget) {
        return at;
    }
    uint32_t left = kUbBudget - end;
    if (shape.postSoftmax) {
        const uint32_t more = (left - kMinValueBytes) / chunkScores;
        at.scoreRows += more * chunkRows;
        end += more * chunkScores;
        left = kMinValueBytes;
    }
    at.valueRows = end;
    left = left < kMaxValueBytes ? left : kMaxValueBytes;
    at.valueRowsPerRound = left / rowBytes / 8 * 8;
    at.total = end + at.valueRowsPerRound * rowBytes;
    return at;
}

// The first choice that fits: a deep ring keeps the copies busy, a long chunk spreads the cost of a threshold test.
TOPTHETA_DEVICE constexpr UbLayout MakeUbLayout(const UbShape& shape)
{
    constexpr uint32_t kChoices[][2] = {{4, 1024}, {4, 512}, {3, 1024}, {3, 512}, {2, 1024}, {2, 512},
                                        {3, 256},  {2, 256}, {2, 128}};
    constexpr uint32_t kPostChoices[][2] = {{4, 512}, {3, 512}, {2, 512}, {3, 256}, {2, 256}, {2, 128}};
    UbLayout layout = {};
    if (shape.postSoftmax) {
        for (const auto& choice : kPostChoices) {
            layout = PlaceBuffers(shape, choice[0], choice[1]);
            if (layout.valueRowsPerRound > 0) {
                return layout;
            }
        }
        return layout;
    }
    for (const auto& choice : kChoices) {
        layout = PlaceBuffers(shape, choice[0], choice[1]);
        if (layout.valueRowsPerRound > 0) {
            return layout;
        }
    }
    return layout;
}

// Every variant that tiling can ask for has a layout inside the budget.
constexpr bool EveryLayoutFits()
{
    for (uint32_t headDim = 16; headDim <= kMaxHeadDim; headDim += 16) {
        for (uint32_t headBlock = 1; headBlock <= HeadBlockFor(kMaxHeadBlock, headDim); headBlock++) {
            for (uint32_t mode = 0; mode < 4; mode++) {
                const UbLayout layout = MakeUbLayout({headDim, headBlock, (mode & 1) != 0, (mode & 2) != 0});
                const bool outputFits = layout.chunkRows * 2 >= headDim;  // rows are cast into `weights` on their way out
                if (layout.valueRowsPerRound == 0 || layout.total > kUbBudget || !outputFits) {
                    return false;
                }
            }
        }
    }
    return true;
}
static_assert(EveryLayoutFits(), "a head_dim and head block has no Unified Buffer layout within the budget");

}  // namespace toptheta
