// The Unified Buffer layout as C functions for ctypes: where each buffer lies and how large its use is.
#include "cube_layout.h"

extern "C" {

struct Buffer {
    const char* name;
    uint32_t offset;
    uint32_t bytes;
};

constexpr uint32_t kBufferCount = 25;

uint32_t BufferCount() { return kBufferCount; }

uint32_t HeadBlockOf(uint32_t group, uint32_t headDim) { return toptheta::HeadBlockFor(group, headDim); }

uint32_t TokenBlockOf(uint32_t group, uint32_t headDim, uint32_t bfloat16, uint32_t keyBytes, uint32_t valueBytes,
                      uint32_t queryTokens)
{
    return toptheta::TokenBlockFor(group, {headDim, 0, bfloat16 != 0, false, true, keyBytes, valueBytes, queryTokens});
}

uint32_t RoundRowsOf(uint32_t headDim, uint32_t keyBytes) { return toptheta::RoundRowsFor(headDim, keyBytes); }

uint32_t Budget() { return toptheta::kUbBudget; }

// The sizes are those of the uses, not the distances between the offsets.
void LayoutOf(uint32_t headDim, uint32_t headBlock, uint32_t bfloat16, uint32_t postSoftmax, uint32_t cube,
              uint32_t keyBytes, uint32_t valueBytes, uint32_t queryTokens, toptheta::UbLayout* layout, Buffer* buffers)
{
    using namespace toptheta;
    const UbLayout at = MakeUbLayout(
        {headDim, headBlock, bfloat16 != 0, postSoftmax != 0, cube != 0, keyBytes, valueBytes, queryTokens},
        cube != 0 ? kCubeChunkRows : kMostInt8ChunkRows);
    const uint32_t queries = cube != 0 ? 0 : headBlock;
    const uint32_t maskBytes = MaskBytes(at.chunkRows);
    const bool int8 = keyBytes == 1;
    const bool halves = cube != 0 ? valueBytes == 1 : int8;
    const bool wide = bfloat16 != 0 && !int8;
    const uint32_t queryBytes = AlignUp(headDim * (wide ? 4 : 2), kBlockBytes);
    const Buffer all[kBufferCount] = {
        {"keyTiles", at.keyTiles, at.slots * at.slotBytes},
        {"partials", at.partials, kPartialBytes},
        {"castPiece", at.castPiece, bfloat16 != 0 || halves ? kPartialBytes : 0},
        {"halfPiece", at.halfPiece, halves ? kPartialBytes : 0},  // and castPiece, which the panels of K take too
        {"keyScales", at.keyScales, int8 ? (cube != 0 ? at.chunkRows : ScaleRows(at)) * 4 : 0},
        {"scores", at.scores, headBlock * at.scoreRows * 4},
        {"weights", at.weights, headBlock * at.chunkRows * 4},
        {"rowNumbers", at.rowNumbers, at.chunkRows * 2},
        {"rowOffsets", at.rowOffsets,
         cube != 0 && FoldsKeys(headDim, headBlock, headDim, keyBytes) ? FoldedRows(keyBytes) * 4 : 0},
        {"rowList", at.rowList, at.chunkRows * 2},
        {"masks", at.masks, MaskSlots(headBlock) * maskBytes},
        {"valueRows", at.valueRows, at.valueListRows * headDim * valueBytes},
        {"spread", at.spread, 64 * kBlockBytes + 256},
        {"query", at.query, queries * queryBytes},
        {"firstColumns", at.firstColumns, wide ? 0 : queries * kFirstColumnBytes},
        {"accumulator", at.accumulator, headBlock * headDim * 4},
        {"parameters", at.parameters,
         kParameterBlocks * kBlockBytes + (bfloat16 != 0 || int8 ? queries * headDim * 2 : 0)},
        {"partCounts", at.partCounts, headBlock * kBlockBytes},
        {"valueMean", at.valueMean, 2 * BlockTokens(queryTokens, headBlock) * headDim * 4},
        {"channels", at.channels, int8 ? 3 * headDim * 4 : 0},
        {"valueScales", at.valueScales, valueBytes == 1 ? ScaleRows(at) * 4 : 0},
        {"state", at.state, kStateQuantities * headBlock * kBlockBytes},
        {"scratch", at.scratch, kScratchBytes},
        {"lengths", at.lengths, (queryTokens > 0 ? 3 : 2) * kLengthSlice},
        {"blockTable", at.blockTable, 2 * kTableSlices * kTableSlicePages * 4},
    };
    for (uint32_t i = 0; i < kBufferCount; i++) {
        buffers[i] = all[i];
    }
    *layout = at;
}

}  // extern "C"
