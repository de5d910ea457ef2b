// What the host tells the kernel: shapes, strides and modes, never lengths, which live on the device.
#pragma once

#include <cstdint>

#ifndef TOPTHETA_DEVICE
#define TOPTHETA_DEVICE
#endif

// Tiling keys. WHOLE: no (sequence, KV head, head block) is shared by two cores, so no SyncAll and a vector-only
// launch. SPLIT: cores meet in SyncAll, which needs the scheduler that a MIX launch starts. CUBE: the same, with the
// scores from a cube core for every two vector cores. CUBE_TOKENS: of several query tokens, each with keys of its own
// to see. Post-softmax has keys of its own, since its second phase is a third of the code: the common keys are without
// it. They are macros because the operator build looks for their numbers in the preprocessed text of KERNEL_TASK_TYPE
// and TILING_KEY_IS, where a constant would be a name still (KernelInfoInfer, kernel_info_infer.py of asc-devkit).
#define TOPTHETA_KEY_WHOLE 1
#define TOPTHETA_KEY_SPLIT 2
#define TOPTHETA_KEY_CUBE 3
#define TOPTHETA_KEY_CUBE_TOKENS 4
#define TOPTHETA_KEY_WHOLE_POST_SOFTMAX 11
#define TOPTHETA_KEY_SPLIT_POST_SOFTMAX 12
#define TOPTHETA_KEY_CUBE_POST_SOFTMAX 13

namespace toptheta {

// Post-softmax by the log-sum-exp of a sample of keys is a mode of the kernels of post-softmax.
enum Placement : uint32_t { kPreSoftmax = 0, kPostSoftmax = 1, kSampledSoftmax = 2 };
enum Sdc : uint32_t { kSdcNone = 0, kSdcExact = 1, kSdcExpThreshold = 2, kSdcOffline = 3 };
enum Path : uint32_t { kPathAuto = 0, kPathGather = 1, kPathDense = 2 };

// Positions of the inputs in the operator definition, which are those of the kernel's arguments too.
struct InputIndex {
    enum : uint32_t {
        kQuery,
        kKey,
        kValue,
        kThreshold,
        kActualSeqLengths,
        kKeyStart,
        kBlockTable,
        kKeyAntiquantScale,
        kValueAntiquantScale,
        kActualQueryLengths,
        kDiscardedMass,
        kValueMean,
        kLearnableSink,
        kRowLse,
        kCount
    };
};

// Strides of a cache, in elements. A contiguous cache counts sequences in `outer`, a paged one blocks.
struct CacheStrides {
    int64_t outer;
    int64_t head;
    int64_t row;
};

// What every call has. Two cache lines: a core reads it before anything else.
struct TilingData {
    CacheStrides key;
    CacheStrides value;
    // bytes into the user workspace, which begins with the parts of cut units: two slots for each core and phase
    uint64_t ringOffset;       // bytes: scores on their way from the cube cores, a ring for each vector core
    uint64_t valueRowsOffset;  // bytes: rows read by each (sequence, KV head, head block), 32 bytes apart
    uint64_t scoresOffset;     // bytes: float32 scores [B, Hq, capacity] of post-softmax
    uint32_t batch;
    uint32_t numHeads;  // query rows of a sequence: one for each head and token, the tokens of a head side by side
    uint32_t numKeyValueHeads;
    uint32_t headDim;
    uint32_t capacity;         // rows that a sequence may hold
    uint32_t blocks;           // pages of the cache; a number in the block table that names none is clamped
    uint32_t blockTableWidth;  // pages a sequence may have
    float scaleValue;
    float sdcGamma;
    uint16_t blockSize;            // rows of a page, 0 for a contiguous cache
    uint16_t headBlocks;           // head blocks of a group
    uint16_t chunkRows;            // keys of a chunk
    uint16_t givenInputs;          // bit i: the call has input i of the definition
    uint8_t slots;                 // of the ring of tiles
    uint8_t cores;                 // vector cores of the launch
    uint8_t headBlock;             // query heads handled together
    uint8_t integerBytes;          // 4 or 8, of a length, a start or a number of tokens
    uint8_t queryTokens;           // of each sequence; 0: the call knows a single one
    uint8_t thresholdAxes;         // 1: [Hq], 2: [B, Hq], 3: [B, Hq, Sq]
    uint8_t placement;
    uint8_t sdc;
    uint8_t path;
    uint8_t withStats;
    uint8_t partial;
    uint8_t pastL2 : 1;       // K and V go past the L2
    uint8_t tokensFirst : 1;  // of query and output: tokens come before heads
};
static_assert(InputIndex::kCount <= 16, "every input has a bit in givenInputs");

TOPTHETA_DEVICE inline bool Has(const TilingData& tiling, uint32_t input)
{
    return (tiling.givenInputs >> input & 1) != 0;
}

// Vector cores of a block that take the same keys, each for head blocks of its own: with several tokens and more than
// one head block the two of them, so that their cube core copies the K rows once.
TOPTHETA_DEVICE inline uint32_t SharersOfKeys(const TilingData& tiling)
{
    return tiling.queryTokens > 0 && tiling.headBlocks > 1 ? 2 : 1;
}

// Statistics of a group with several head blocks: the cores meet to add up the rows that the blocks read.
TOPTHETA_DEVICE inline bool SumsHeadBlocks(const TilingData& tiling)
{
    return tiling.withStats && tiling.headBlocks > 1;
}

static_assert(sizeof(TilingData) == 128, "what every call has fills two 64-byte cache lines");

// What the scales of an int8 cache are for, by the numbers of the arguments key_antiquant_mode, value_antiquant_mode.
enum AntiquantMode : uint32_t { kPerChannel = 0, kPerTokenAndHead = 3, kPerTokenAndHeadPaged = 5 };

// Scales of K or V. Those per token lie as the rows of their cache do, with strides of their own, in elements; those of
// neighbouring rows are neighbours.
struct ScaleTiling {
    int64_t outer;
    int64_t head;
    uint32_t perToken;  // 0: float32 [Hkv, D]
    uint32_t unused;
};

// A third cache line, which only kernels for int8 caches read.
struct TopThetaIncrementalAttentionTilingData {
    TilingData call;
    ScaleTiling keyScales;
    ScaleTiling valueScales;
};

}  // namespace toptheta
