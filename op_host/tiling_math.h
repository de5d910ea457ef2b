// The tiling: from arguments and platform to the kernel's tiling struct, its key, launch size and workspace.
// Shapes alone decide, never lengths, so that a captured launch stays right when lengths change.
#pragma once

#include <algorithm>

#include "argument_checks.h"
#include "../op_kernel/query_slots.h"
#include "../op_kernel/work_split.h"

namespace toptheta {

constexpr uint32_t kMaxCores = 64;
constexpr uint64_t kSectionBytes = 512;                     // alignment of the parts of the workspace
constexpr uint64_t kMaxScoreBytes = 256ULL * 1024 * 1024;   // float32 scores that post-softmax may keep
constexpr uint32_t kCubeHeads = 3;                          // query heads of a block from which on the cube pays
constexpr uint32_t kCubeHeadsBfloat16 = 2;
constexpr uint32_t kThresholdsOfRows = 3;                   // axes of [B, Hq, Sq]
constexpr uint32_t kScheduleAllAtOnce = 1;                  // every block resident, as SyncAll needs

static_assert(EveryLayoutFits(), "a head_dim and head block has no Unified Buffer layout within the budget");
static_assert(EveryRoundFits(), "a head_dim has no round that fits L1 and a chunk");

struct Platform {
    uint32_t vectorCores = 0;
    uint32_t cubeCores = 0;
    uint64_t ubBytes = 0;
    uint64_t l2Bytes = 0;  // 0: not known
    uint64_t systemWorkspaceBytes = 0;
};

struct Tiling {
    TopThetaIncrementalAttentionTilingData data = {};
    uint64_t key = 0;
    uint32_t blockDim = 0;
    uint32_t scheduleMode = 0;
    uint64_t workspaceBytes = 0;
};

inline ArgumentError CheckPlatform(const Platform& platform)
{
    if (platform.vectorCores == 0) {
        return NotSupportedError("SoC", "vector cores", "none", "the operator is made for ascend910b and ascend910_93");
    }
    if (platform.ubBytes < kUbBudget) {
        return NotSupportedError("SoC", std::to_string(kUbBudget) + " bytes of Unified Buffer",
                                 std::to_string(platform.ubBytes),
                                 "the operator is made for ascend910b and ascend910_93");
    }
    return {};
}

// The names have been checked.
inline Sdc SdcOf(const std::string& name)
{
    if (name == "none") {
        return kSdcNone;
    }
    if (name == "exact") {
        return kSdcExact;
    }
    return name == "exp_threshold" ? kSdcExpThreshold : kSdcOffline;
}

inline Path PathOf(const std::string& name)
{
    return name == "auto" ? kPathAuto : name == "gather" ? kPathGather : kPathDense;
}

inline Placement PlacementOf(const std::string& name)
{
    return name == "pre_softmax" ? kPreSoftmax : name == "post_softmax" ? kPostSoftmax : kSampledSoftmax;
}

inline void FillModes(const Arguments& arguments, TilingData& data)
{
    data.placement = PlacementOf(arguments.placement);
    data.sdc = SdcOf(arguments.sdc);
    data.path = PathOf(arguments.path);
    for (uint32_t input = 0; input < InputIndex::kCount; input++) {
        data.givenInputs |= static_cast<uint16_t>(arguments.Has(input) ? 1U << input : 0U);
    }
    data.withStats = arguments.withStats;
    data.partial = arguments.partial;
    data.scaleValue = arguments.scaleValue;
    data.sdcGamma = arguments.sdcGamma;
}

// Of one element of the inputs of integers, which are all of one type.
inline uint8_t IntegerBytes(const Arguments& arguments)
{
    for (const uint32_t input :
         {InputIndex::kActualSeqLengths, InputIndex::kKeyStart, InputIndex::kActualQueryLengths}) {
        if (arguments.Has(input)) {
            return arguments.inputs[input].type == ElementType::kInt64 ? 8 : 4;
        }
    }
    return 0;
}

// Of an element of K and V.
inline uint32_t KeyBytes(const TilingData& data) { return Has(data, InputIndex::kKeyAntiquantScale) ? 1 : 2; }
inline uint32_t ValueBytes(const TilingData& data) { return Has(data, InputIndex::kValueAntiquantScale) ? 1 : 2; }

// Several tokens, and the head blocks of their query rows: one, or an even number, since two cores share keys.
inline void FillTokens(const Arguments& arguments, const Geometry& geometry, bool bfloat16, TilingData& data)
{
    data.queryTokens = static_cast<uint8_t>(geometry.queryTokens);
    data.tokensFirst = geometry.queryTokens > 1 && arguments.inputLayout != "BNSD";
    const uint32_t group = static_cast<uint32_t>(geometry.Group());
    const uint32_t most = TokenBlockFor(
        group, {data.headDim, 0, bfloat16, false, true, KeyBytes(data), ValueBytes(data), data.queryTokens});
    const uint32_t blocks = group <= most ? 1 : kPairCores * ((group + kPairCores * most - 1) / (kPairCores * most));
    data.headBlocks = static_cast<uint16_t>(blocks);
    data.headBlock = static_cast<uint8_t>((group + blocks - 1) / blocks);
}

inline void FillShapes(const Arguments& arguments, const Geometry& geometry, TilingData& data)
{
    data.key = geometry.key;
    data.value = geometry.value;
    data.batch = static_cast<uint32_t>(geometry.batch);
    data.numHeads = static_cast<uint32_t>(geometry.numHeads * geometry.queryTokens);
    data.numKeyValueHeads = static_cast<uint32_t>(geometry.numKeyValueHeads);
    data.headDim = static_cast<uint32_t>(geometry.headDim);
    data.capacity = static_cast<uint32_t>(geometry.capacity);
    data.blocks = static_cast<uint32_t>(std::min<int64_t>(geometry.blocks, UINT32_MAX));
    data.blockSize = arguments.Paged() ? static_cast<uint16_t>(arguments.blockSize) : 0;
    data.blockTableWidth = static_cast<uint32_t>(geometry.tableWidth);
    data.integerBytes = IntegerBytes(arguments);
    data.thresholdAxes = static_cast<uint8_t>(arguments.Dims(InputIndex::kThreshold).size());
    if (HasTokens(arguments, geometry)) {
        const bool bfloat16 = arguments.inputs[InputIndex::kQuery].type == ElementType::kBfloat16;
        FillTokens(arguments, geometry, bfloat16, data);
        return;
    }
    const uint32_t group = static_cast<uint32_t>(geometry.Group());
    data.headBlock = static_cast<uint8_t>(HeadBlockFor(group, data.headDim));
    data.headBlocks = static_cast<uint16_t>((group + data.headBlock - 1) / data.headBlock);
}

inline ScaleTiling ScalesOf(const CacheStrides& strides, int64_t mode)
{
    return {strides.outer, strides.head, mode != kPerChannel, 0};
}

// (sequence, KV head, head block) of the call
inline uint32_t UnitsOf(const TilingData& data) { return data.batch * data.numKeyValueHeads * data.headBlocks; }

// The work when every sequence fills the cache; lengths can only leave less.
inline WorkTotal MostWork(const TilingData& data)
{
    const auto capacity = [&data](uint32_t) { return data.capacity; };
    const uint32_t sharers = SharersOfKeys(data);
    // as of one sequence: all are alike
    return TotalWork(1, UnitsOf(data) / sharers, data.cores / sharers, capacity);
}

// No core has to meet another: what the kernel decides from the lengths (work_split.h), where these are known already.
inline bool UnitsStayWhole(const TilingData& data)
{
    return data.integerBytes == 0 && !SumsHeadBlocks(data) &&
           !AnyCut(MostWork(data), UnitsOf(data) / SharersOfKeys(data));
}

// Whether there is a cube core for every two vector cores.
inline bool HasCubes(const TilingData& data, const Platform& platform)
{
    return data.cores == kPairCores * platform.cubeCores;
}

// Whether a cube core multiplies the K rows for its two vector cores. One or two float16 queries for each K row the
// vector unit multiplies as fast as the rows arrive; bfloat16 rows it would have to cast first.
inline bool UsesCube(const TilingData& data, const Platform& platform, bool bfloat16)
{
    const uint32_t worthwhile = bfloat16 ? kCubeHeadsBfloat16 : kCubeHeads;
    return data.headBlock >= worthwhile && HasCubes(data, platform) && data.key.row <= kMostRowStride;
}

// Cores that get work when every sequence fills the cache: a launch takes the longer, the more blocks it has. The
// kernel splits the work among them as it would among all (work_split.h). A block with a cube core has two vector
// cores.
inline uint32_t CoresWithWork(const TilingData& data, bool cube)
{
    const uint32_t active = MostWork(data).activeCores * SharersOfKeys(data);
    return cube ? AlignUp(active, kPairCores) : active;
}

// Rings of scores on their way from the cube cores, and behind them the parts of the queries for int8 K rows.
inline uint64_t RingSectionBytes(const TilingData& data)
{
    const uint64_t rings = data.cores * RingBytes(data.headDim, data.headBlock, KeyBytes(data));
    const uint64_t slots = QuerySlots(UnitsOf(data), data.cores) * QuerySlotBytes(data.headDim, data.headBlock);
    return KeyBytes(data) == 1 ? rings + slots : rings;
}

// Whether sequences of a contiguous cache, or its KV heads, lie in the same place.
inline bool SharesRows(const CacheStrides& strides, const TilingData& data)
{
    const bool sequences = data.blockSize == 0 && data.batch > 1 && strides.outer == 0;
    return sequences || (data.numKeyValueHeads > 1 && strides.head == 0);
}

// Whether K and V go past the L2. Nothing of them is read twice in a launch, unless several head blocks or, with a
// sequence stride of 0, several sequences share the rows; the next step comes back to them after all other layers. So
// where they do not fit, all they do there is to push out what is read again: scores on their way between cores, parts.
// The factor 1.2 is that of the toolkit's own incre_flash_attention.
inline bool GoesPastL2(const TilingData& data, const Platform& platform)
{
    if (platform.l2Bytes == 0 || data.headBlocks > 1 || SharesRows(data.key, data) || SharesRows(data.value, data)) {
        return false;
    }
    uint64_t rows = static_cast<uint64_t>(data.batch) * data.capacity;
    if (data.blockSize > 0) {
        rows = std::min(rows, static_cast<uint64_t>(data.blocks) * data.blockSize);
    }
    const uint64_t bytes =
        rows * data.numKeyValueHeads * data.headDim * (KeyBytes(data) + static_cast<uint64_t>(ValueBytes(data)));
    return 5 * bytes >= 6 * platform.l2Bytes;
}

// Scores of post-softmax that neither the Unified Buffer holds nor a given log-sum-exp makes needless.
inline uint64_t ScoreBytes(const TilingData& data, bool bfloat16, bool split)
{
    if (data.placement != kPostSoftmax || Has(data, InputIndex::kRowLse)) {
        return 0;
    }
    const UbShape shape = {data.headDim, data.headBlock, bfloat16, true, false, KeyBytes(data), ValueBytes(data)};
    const UbLayout layout = PlaceBuffers(shape, {data.slots, data.chunkRows});
    if (!split && ScoresStayInUb(data.capacity, layout)) {
        return 0;
    }
    return static_cast<uint64_t>(data.batch) * data.numHeads * data.capacity * sizeof(float);
}

inline ArgumentError CheckScoreBytes(uint64_t bytes, const TilingData& data)
{
    if (bytes <= kMaxScoreBytes) {
        return {};
    }
    const auto mebibytes = [](uint64_t count) { return NumberText(static_cast<double>(count) / (1 << 20)) + " MiB"; };
    return NotSupportedError(
        "placement", "at most " + mebibytes(kMaxScoreBytes) + " of scores with placement='post_softmax'",
        mebibytes(bytes) + " for [B, Hq, capacity] = " + ListText({data.batch, data.numHeads, data.capacity}),
        "use placement='sampled_softmax', smaller batches or a smaller cache");
}

// Appends a section to the user workspace and gives its offset.
inline uint64_t PlaceSection(uint64_t bytes, uint64_t& end)
{
    const uint64_t offset = end;
    end += (bytes + kSectionBytes - 1) / kSectionBytes * kSectionBytes;
    return offset;
}

inline ArgumentError ComputeTiling(const Arguments& arguments, const Platform& platform, Tiling& tiling)
{
    Geometry geometry;
    if (const ArgumentError error = ResolveArguments(arguments, geometry)) {
        return error;
    }
    if (const ArgumentError error = CheckPlatform(platform)) {
        return error;
    }
    TilingData& data = tiling.data.call;
    FillModes(arguments, data);
    FillShapes(arguments, geometry, data);
    tiling.data.keyScales = ScalesOf(geometry.keyScales, arguments.keyAntiquantMode);
    tiling.data.valueScales = ScalesOf(geometry.valueScales, arguments.valueAntiquantMode);
    data.cores = static_cast<uint8_t>(std::min(platform.vectorCores, kMaxCores));
    const bool bfloat16 = arguments.inputs[InputIndex::kQuery].type == ElementType::kBfloat16;
    const bool tokens = HasTokens(arguments, geometry);
    if (tokens && !HasCubes(data, platform)) {
        return NotSupportedError("query", "one token per sequence where there is no cube core for two vector cores",
                                 ListText(arguments.Dims(InputIndex::kQuery)), "give the tokens one by one");
    }
    const bool cube = tokens || UsesCube(data, platform, bfloat16);
    const bool split = !UnitsStayWhole(data);
    data.cores = static_cast<uint8_t>(CoresWithWork(data, cube));
    data.pastL2 = GoesPastL2(data, platform);
    const bool twoPhases = data.placement == kPostSoftmax && !Has(data, InputIndex::kRowLse);
    const LayoutChoice choice = ChooseLayout({data.headDim, data.headBlock, bfloat16, twoPhases, cube, KeyBytes(data),
                                              ValueBytes(data), tokens ? data.queryTokens : 0U},
                                             cube ? kCubeChunkRows : kMostInt8ChunkRows);
    data.slots = static_cast<uint8_t>(choice.slots);
    data.chunkRows = static_cast<uint16_t>(choice.chunkRows);
    const uint64_t scores = ScoreBytes(data, bfloat16, split);
    if (const ArgumentError error = CheckScoreBytes(scores, data)) {
        return error;
    }
    const uint64_t slot = static_cast<uint64_t>(data.headBlock) * (kPartBlocks * kBlockBytes + 4ULL * data.headDim);
    uint64_t end = 0;
    // post-softmax leaves parts twice: masses for the log-sum-exp of the row, then what was selected with it
    const uint64_t slots = 2ULL * data.cores * (twoPhases ? 2 : 1);
    PlaceSection(split ? slots * slot : 0, end);
    data.ringOffset = PlaceSection(cube ? RingSectionBytes(data) : 0, end);
    data.valueRowsOffset =
        PlaceSection(SumsHeadBlocks(data) ? static_cast<uint64_t>(UnitsOf(data)) * kBlockBytes : 0, end);
    data.scoresOffset = PlaceSection(scores, end);
    if (data.placement != kPreSoftmax) {
        tiling.key = cube    ? TOPTHETA_KEY_CUBE_POST_SOFTMAX
                     : split ? TOPTHETA_KEY_SPLIT_POST_SOFTMAX
                             : TOPTHETA_KEY_WHOLE_POST_SOFTMAX;
    } else {
        tiling.key = tokens  ? TOPTHETA_KEY_CUBE_TOKENS
                     : cube  ? TOPTHETA_KEY_CUBE
                     : split ? TOPTHETA_KEY_SPLIT
                             : TOPTHETA_KEY_WHOLE;
    }
    tiling.blockDim = cube ? data.cores / kPairCores : data.cores;
    tiling.scheduleMode = split ? kScheduleAllAtOnce : 0;
    tiling.workspaceBytes = platform.systemWorkspaceBytes + end;
    return {};
}

}  // namespace toptheta
