// Errors of the tiling: argument, what was expected, what came, the remedy.
#include <gtest/gtest.h>

#include "tiling_call.h"

namespace toptheta_ut {
namespace {

constexpr auto kFloat16 = ElementType::kFloat16, kBfloat16 = ElementType::kBfloat16, kFloat32 = ElementType::kFloat32;
constexpr auto kInt8 = ElementType::kInt8, kInt32 = ElementType::kInt32, kInt64 = ElementType::kInt64;
const Shape kBase;  // BNSD: query [2, 4, 1, 32], key and value [2, 2, 64, 32]
const Shape kBsh = {2, 2, 2, 32, 64, "BSH"}, kBsnd = {2, 2, 2, 32, 64, "BSND"};
const Shape kPaged = {2, 2, 2, 32, 4, "BNSD", kFloat16, Cache::kPaged4d, 16};
const Shape kPaged3d = {2, 2, 2, 32, 4, "BNSD", kFloat16, Cache::kPaged3d, 16};

// A paged call of other sizes.
Shape PagedWith(int64_t pages, int64_t blockSize, int64_t blocks)
{
    return {2, 2, 2, 32, pages, "BNSD", kFloat16, Cache::kPaged4d, blockSize, blocks};
}

void GiveQuery(Arguments& call, Sizes sizes) { Resize(call, InputIndex::kQuery, std::move(sizes)); }
void TwoTokens(Arguments& call) { GiveQuery(call, {2, 4, 2, 32}); }
void GiveQueryLengths(Arguments& call, ElementType type) { Give(call, InputIndex::kActualQueryLengths, type, {2}); }

struct ErrorCase {
    const char* name;
    Shape shape;
    Change change;
    const char* message;
    Platform platform = kAtlasA2;
};

class TopThetaIncrementalAttentionTilingErrors : public testing::TestWithParam<ErrorCase> {};

TEST_P(TopThetaIncrementalAttentionTilingErrors, Message)
{
    const ErrorCase& one = GetParam();
    EXPECT_EQ(TileChanged(one.shape, one.change, one.platform).error.message, one.message);
}

std::string NameOf(const testing::TestParamInfo<ErrorCase>& info) { return info.param.name; }

const ErrorCase kLimits[] = {
    {"HeadDimStep",
     {2, 2, 2, 40},
     Unchanged,
     "query: expected head_dim a multiple of 16 on an NPU, got 40; "
     "pad query, key and value with zeros and keep scale_value"},
    {"Batch", {65537}, Unchanged, "query: expected at most 65536 sequences, got [65537, 4, 1, 32]; split the batch"},
    {"Heads", {2, 4097, 1}, Unchanged, "num_heads: expected 1 to 4096, got 4097"},
    {"Capacity",
     {2, 2, 2, 32, 262145},
     Unchanged,
     "key: expected at most 262144 keys per sequence, got [2, 2, 262145, 32]"},
    {"PagedCapacity", PagedWith(16385, 16, 9), Unchanged,
     "block_table: expected 1 to 16384 blocks per sequence with block_size=16, got 16385"},
    {"NoBlocksPerSequence", PagedWith(0, 16, 9), Unchanged,
     "block_table: expected 1 to 16384 blocks per sequence with block_size=16, got 0"},
    {"BlockSizeStep", PagedWith(4, 24, 9), Unchanged,
     "block_size: expected a multiple of 16 up to 512 on an NPU, got 24; use a cache with block_size=128, for example"},
    {"BlockSizeLarge", PagedWith(4, 528, 9), Unchanged,
     "block_size: expected a multiple of 16 up to 512 on an NPU, got 528; use a cache with block_size=128, for "
     "example"},
    {"BlockSizeNegative", kPaged, [](Arguments& call) { call.blockSize = -16; },
     "block_size: expected the rows per block of the paged cache, got -16"},
    {"ScoresOfPostSoftmax",
     {64, 8, 1, 32, 262144},
     [](Arguments& call) {
         PostSoftmax(call);
         GiveLengths(call);
     },
     "placement: expected at most 256 MiB of scores with placement='post_softmax', got 512 MiB for [B, Hq, capacity] "
     "= [64, 8, 262144]; use placement='sampled_softmax', smaller batches or a smaller cache"},
    {"NoVectorCores",
     kBase,
     Unchanged,
     "SoC: expected vector cores, got none; the operator is made for ascend910b and ascend910_93",
     {0, 24, 192 * 1024, 0, 0}},
    {"SmallUb",
     kBase,
     Unchanged,
     "SoC: expected 188160 bytes of Unified Buffer, got 188159; the operator is made for ascend910b and ascend910_93",
     {48, 24, 188159, 0, 0}},
};

const ErrorCase kTokens[] = {
    {"NoTokens", kBase, [](Arguments& call) { GiveQuery(call, {2, 4, 0, 32}); },
     "query: expected at least one token, BNSD [B, Hq, Sq, D], got [2, 4, 0, 32]"},
    {"ManyTokens", kBase, [](Arguments& call) { GiveQuery(call, {2, 4, 17, 32}); },
     "query: expected 1 to 16 tokens, BNSD [B, Hq, Sq, D], got [2, 4, 17, 32]; use prefill_attention for more tokens"},
    {"PostSoftmax", kBase,
     [](Arguments& call) {
         TwoTokens(call);
         PostSoftmax(call);
     },
     "placement: expected 'pre_softmax' with several query tokens on an NPU, got 'post_softmax'; "
     "give the tokens one by one, or use the fallback"},
    {"Part", kBase,
     [](Arguments& call) {
         TwoTokens(call);
         call.partial = true;
     },
     "partial: expected False with several query tokens on an NPU, got True; "
     "give the tokens one by one, or use the fallback"},
    {"Rows",
     {2, 1, 257},
     [](Arguments& call) {
         GiveQuery(call, {2, 257, 16, 32});
         Resize(call, InputIndex::kThreshold, {257});
     },
     "query: expected at most 4096 heads times tokens on an NPU, got [2, 257, 16, 32]; give fewer tokens at once"},
    {"RowsFarApart", kBase,
     [](Arguments& call) {
         TwoTokens(call);
         call.keyStrides = {16, 512, 65536};
     },
     "key_strides: expected rows at most 65535 elements apart with several query tokens on an NPU, got 65536; "
     "pass key.contiguous()"},
    {"WithoutCubes", kBase, TwoTokens,
     "query: expected one token per sequence where there is no cube core for two vector cores, got [2, 4, 2, 32]; "
     "give the tokens one by one",
     kWithoutCubes},
    {"Threshold", kBase,
     [](Arguments& call) {
         TwoTokens(call);
         Resize(call, InputIndex::kThreshold, {2, 4, 3});
     },
     "threshold: expected shape [2, 4, 2] [B, Hq, Sq], got [2, 4, 3]"},
    {"DiscardedMass", kBase,
     [](Arguments& call) {
         TwoTokens(call);
         call.sdc = "offline";
         Resize(call, InputIndex::kDiscardedMass, {2, 4});
     },
     "discarded_mass: expected shape [2, 4, 2] [B, Hq, Sq], got [2, 4]"},
    {"QueryLengthsUnlikeLengths", kBase,
     [](Arguments& call) {
         GiveLengths(call);
         GiveQueryLengths(call, kInt64);
     },
     "actual_query_lengths: expected dtype int32, got int64; convert it with actual_query_lengths.to(torch.int32)"},
    {"QueryLengthsUnlikeStarts", kBase,
     [](Arguments& call) {
         Give(call, InputIndex::kKeyStart, kInt64, {2});
         GiveQueryLengths(call, kInt32);
     },
     "actual_query_lengths: expected dtype int64, got int32; convert it with actual_query_lengths.to(torch.int64)"},
    {"QueryLengthsShape", kBase, [](Arguments& call) { Give(call, InputIndex::kActualQueryLengths, kInt32, {3}); },
     "actual_query_lengths: expected shape [2] [B], got [3]"},
};

const ErrorCase kTypes[] = {
    {"Query", kBase, [](Arguments& call) { call.inputs[InputIndex::kQuery].type = kFloat32; },
     "query: expected dtype float16 or bfloat16, got float32; convert it with query.to(torch.float16)"},
    {"Key", kBase, [](Arguments& call) { call.inputs[InputIndex::kKey].type = kBfloat16; },
     "key: expected dtype float16 or int8, got bfloat16; convert it with key.to(torch.float16)"},
    {"Value",
     {2, 2, 2, 32, 64, "BNSD", kBfloat16},
     [](Arguments& call) { call.inputs[InputIndex::kValue].type = kFloat16; },
     "value: expected dtype bfloat16, got float16; convert it with value.to(torch.bfloat16)"},
    {"Int8ValueAlone", kBase, [](Arguments& call) { call.inputs[InputIndex::kValue].type = kInt8; },
     "value: expected float16, as key is, got int8; quantise K alone, or both"},
    {"Another", kBase, [](Arguments& call) { call.inputs[InputIndex::kValue].type = ElementType::kOther; },
     "value: expected dtype float16, got another dtype; convert it with value.to(torch.float16)"},
    {"StartsUnlikeLengths", kBase,
     [](Arguments& call) {
         GiveLengths(call);
         Give(call, InputIndex::kKeyStart, kInt64, {2});
     },
     "key_start: expected dtype int32, got int64; convert it with key_start.to(torch.int32)"},
    {"StartsAlone", kBase, [](Arguments& call) { Give(call, InputIndex::kKeyStart, kFloat32, {2}); },
     "key_start: expected dtype int32 or int64, got float32; convert it with key_start.to(torch.int32)"},
};

void ByChannel(Arguments& call) { MakeInt8(call, false); }
void ByToken(Arguments& call) { MakeInt8(call, true); }

const ErrorCase kInt8Caches[] = {
    {"HeadDim",
     {2, 2, 2, 48},
     ByChannel,
     "query: expected head_dim a multiple of 32 with int8 on an NPU, got 48; "
     "pad query, key and value with zeros and keep scale_value"},
    {"Strides", kBase,
     [](Arguments& call) {
         ByChannel(call);
         call.keyStrides = {4096, 2048, 48};
     },
     "key_strides: expected multiples of 32 elements, at least 0, got [4096, 2048, 48]; pass key.contiguous()"},
    {"KeyScaleType", kBase,
     [](Arguments& call) {
         ByToken(call);
         call.inputs[InputIndex::kKeyAntiquantScale].type = kBfloat16;
     },
     "key_antiquant_scale: expected dtype float32, got bfloat16; convert it with "
     "key_antiquant_scale.to(torch.float32)"},
    {"ShapeByChannel", kBase,
     [](Arguments& call) {
         ByChannel(call);
         Resize(call, InputIndex::kValueAntiquantScale, {32});
     },
     "value_antiquant_scale: expected shape [2, 32] [Hkv, D], got [32]"},
    {"ShapePaged", kPaged,
     [](Arguments& call) {
         ByToken(call);
         Resize(call, InputIndex::kKeyAntiquantScale, {2, 2, 64});
     },
     "key_antiquant_scale: expected shape [9, 2, 16] [blocks, Hkv, block_size], got [2, 2, 64]"},
    {"ScaleStridesCount", kBase,
     [](Arguments& call) {
         ByToken(call);
         call.keyScaleStrides = {128, 64};
     },
     "key_scale_strides: expected the strides of sequence or block, head and row, got [128, 64]"},
    {"ScaleStridesLast", kBase,
     [](Arguments& call) {
         ByToken(call);
         call.valueScaleStrides = {256, 128, 2};
     },
     "value_scale_strides: expected a last stride of 1, got [256, 128, 2]; pass value_antiquant_scale.contiguous()"},
    {"ScaleStridesNegative", kBase,
     [](Arguments& call) {
         ByToken(call);
         call.valueScaleStrides = {-256, 128, 1};
     },
     "value_scale_strides: expected strides of at least 0, got [-256, 128, 1]; "
     "pass value_antiquant_scale.contiguous()"},
    {"ModeWithoutInt8", kBase, [](Arguments& call) { call.keyAntiquantMode = 3; },
     "key_antiquant_mode: expected 0, since key is float16, got 3"},
};

const ErrorCase kShapes[] = {
    {"QueryDims", kBase, [](Arguments& call) { GiveQuery(call, {2, 4, 32}); },
     "query: expected BNSD [B, Hq, Sq, D], got [2, 4, 32]"},
    {"BshQuery", kBsh, [](Arguments& call) { GiveQuery(call, {2, 4, 1, 32}); },
     "query: expected BSH [B, Sq, Hq*D], got [2, 4, 1, 32]"},
    {"BsndQuery", kBsnd, [](Arguments& call) { GiveQuery(call, {2, 128}); },
     "query: expected BSND [B, Sq, Hq, D], got [2, 128]"},
    {"NoHeads", kBase,
     [](Arguments& call) {
         GiveQuery(call, {2, 0, 1, 32});
         call.numHeads = 0;
     },
     "num_heads: expected 1 to 4096, got 0"},
    {"BshNoHeads", kBsh, [](Arguments& call) { call.numHeads = 0; },
     "num_heads: expected a divisor of the hidden size 128, got 0"},
    {"BshNoKeyValueHeads", kBsh, [](Arguments& call) { call.numKeyValueHeads = 0; },
     "num_key_value_heads: expected a divisor of the 4 query heads, got 0; check the KV cache's layout"},
    {"BsndKey", kBsnd, [](Arguments& call) { Resize(call, InputIndex::kKey, {2, 64, 2, 16}); },
     "key: expected shape [2, 64, 2, 32] [B, S, Hkv, D], got [2, 64, 2, 16]"},
    {"BshKeyDims", kBsh, [](Arguments& call) { Resize(call, InputIndex::kKey, {2, 64, 2, 32}); },
     "key: expected 3 dimensions for BSH, got [2, 64, 2, 32]"},
    {"PagedKeyDims", kPaged, [](Arguments& call) { Resize(call, InputIndex::kKey, {9, 1024}); },
     "key: expected 4 or 3 dimensions for a paged cache, got [9, 1024]"},
    {"Paged4dKey", kPaged, [](Arguments& call) { Resize(call, InputIndex::kKey, {9, 2, 32, 32}); },
     "key: expected shape [9, 2, 16, 32] [blocks, Hkv, block_size, D], got [9, 2, 32, 32]"},
    {"Paged3dKey", kPaged3d, [](Arguments& call) { Resize(call, InputIndex::kKey, {9, 16, 32}); },
     "key: expected shape [9, 16, 64] [blocks, block_size, Hkv*D], got [9, 16, 32]"},
    {"ThresholdScalar", kBase, [](Arguments& call) { Resize(call, InputIndex::kThreshold, {}); },
     "threshold: expected shape [2, 4] [B, Hq], got []"},
    {"RowLse", kBase,
     [](Arguments& call) {
         call.partial = true;
         PostSoftmax(call);
         Resize(call, InputIndex::kRowLse, {4});
     },
     "row_lse: expected shape [2, 4] [B, Hq], got [4]"},
    {"StridesCount", kBase, [](Arguments& call) { call.keyStrides = {4096, 32}; },
     "key_strides: expected the strides of sequence or block, head and row, got [4096, 32]"},
    {"StridesStep", kBase, [](Arguments& call) { call.keyStrides = {4096, 2048, 40}; },
     "key_strides: expected multiples of 16 elements, at least 0, got [4096, 2048, 40]; pass key.contiguous()"},
    {"StridesNegative", kBase, [](Arguments& call) { call.valueStrides = {-4096, 2048, 32}; },
     "value_strides: expected multiples of 16 elements, at least 0, got [-4096, 2048, 32]; pass value.contiguous()"},
    {"RowsOverlap", kBase, [](Arguments& call) { call.valueStrides = {4096, 2048, 16}; },
     "value_strides: expected rows from 32 to 1073741855 elements apart, got 16; pass value.contiguous()"},
    {"RowsFarApart", kBase, [](Arguments& call) { call.keyStrides = {4096, 2048, 1073741856}; },
     "key_strides: expected rows from 32 to 1073741855 elements apart, got 1073741856; pass key.contiguous()"},
};

const ErrorCase kModes[] = {
    {"NoSuchSdc", kBase, [](Arguments& call) { call.sdc = "exakt"; },
     "sdc: expected one of none, exact, exp_threshold, offline, got 'exakt'"},
    {"LseWithoutPart", kBase,
     [](Arguments& call) {
         PostSoftmax(call);
         Resize(call, InputIndex::kRowLse, {2, 4});
     },
     "row_lse needs partial=True; leave it out"},
    {"PartWithStats", kBase,
     [](Arguments& call) {
         call.partial = true;
         call.withStats = true;
     },
     "with_stats excludes partial=True, which returns its own quantities; leave it out"},
    {"PartWithSdc", kBase,
     [](Arguments& call) {
         call.partial = true;
         call.sdc = "none";
     },
     "sdc='none' excludes partial=True, which compensates nothing; give sdc to merge_partials"},
    {"PartWithValueMean", kBase,
     [](Arguments& call) {
         call.partial = true;
         Resize(call, InputIndex::kValueMean, {2, 2, 32});
     },
     "value_mean excludes partial=True, which compensates nothing; give value_mean to merge_partials"},
    {"PartWithSink", kBase,
     [](Arguments& call) {
         call.partial = true;
         Resize(call, InputIndex::kLearnableSink, {4});
     },
     "learnable_sink excludes partial=True, whose masses leave it out; give learnable_sink to merge_partials"},
};

INSTANTIATE_TEST_SUITE_P(Limits, TopThetaIncrementalAttentionTilingErrors, testing::ValuesIn(kLimits), NameOf);
INSTANTIATE_TEST_SUITE_P(Tokens, TopThetaIncrementalAttentionTilingErrors, testing::ValuesIn(kTokens), NameOf);
INSTANTIATE_TEST_SUITE_P(Types, TopThetaIncrementalAttentionTilingErrors, testing::ValuesIn(kTypes), NameOf);
INSTANTIATE_TEST_SUITE_P(Int8, TopThetaIncrementalAttentionTilingErrors, testing::ValuesIn(kInt8Caches), NameOf);
INSTANTIATE_TEST_SUITE_P(Shapes, TopThetaIncrementalAttentionTilingErrors, testing::ValuesIn(kShapes), NameOf);
INSTANTIATE_TEST_SUITE_P(Modes, TopThetaIncrementalAttentionTilingErrors, testing::ValuesIn(kModes), NameOf);

struct OutputCase {
    uint32_t output;
    bool withStats;
    bool partial;
    Sizes given;
    const char* message;
};

// Outputs that a caller of the C function allocates itself.
TEST(TopThetaIncrementalAttentionTilingOutputErrors, ShapesOfOutputs)
{
    const OutputCase cases[] = {
        {OutputIndex::kAttentionOut,
         false,
         false,
         {2, 4, 32},
         "attention_out: expected shape [2, 4, 1, 32], like query, got [2, 4, 32]"},
        {OutputIndex::kLse, true, false, {0}, "lse: expected shape [2, 4] [B, Hq], got [0]"},
        {OutputIndex::kKept, true, false, {8}, "kept: expected shape [2, 4] [B, Hq], got [8]"},
        {OutputIndex::kKept, false, true, {0}, "kept: expected shape [2, 4] [B, Hq], got [0]"},
        {OutputIndex::kValueRows, true, false, {2, 4}, "value_rows: expected shape [2, 2] [B, Hkv], got [2, 4]"},
        {OutputIndex::kPartOut, false, true, {0}, "part_out: expected shape [2, 4, 1, 32], like query, got [0]"},
        {OutputIndex::kPartMaximum, false, true, {2}, "part_maximum: expected shape [2, 4] [B, Hq], got [2]"},
        {OutputIndex::kPartKeptMass, false, true, {0}, "part_kept_mass: expected shape [2, 4] [B, Hq], got [0]"},
        {OutputIndex::kPartDiscardedMass,
         false,
         true,
         {4, 2},
         "part_discarded_mass: expected shape [2, 4] [B, Hq], got [4, 2]"},
    };
    for (const OutputCase& one : cases) {
        Arguments call = MakeCall(kBase);
        call.withStats = one.withStats;
        call.partial = one.partial;
        call.outputs[one.output] = {true, kFloat32, one.given};
        EXPECT_EQ(Tile(call).error.message, one.message);
    }
}

}  // namespace
}  // namespace toptheta_ut
