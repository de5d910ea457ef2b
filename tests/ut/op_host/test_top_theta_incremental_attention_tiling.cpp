// Tiling keys, launch, workspace and the struct for the kernel, from shapes and attributes.
#include <gtest/gtest.h>

#include "tiling_call.h"

namespace toptheta_ut {
namespace {

constexpr uint64_t kMiB = 1ULL << 20;
constexpr uint64_t kMostScores = 256 * kMiB;

Shape WithDtype(Shape shape, ElementType type)
{
    shape.type = type;
    return shape;
}

Shape WithLayout(Shape shape, const char* layout)
{
    shape.layout = layout;
    return shape;
}

Shape Paged(Shape shape, Cache cache, int64_t blockSize, int64_t blocks = 9)
{
    shape.cache = cache;
    shape.blockSize = blockSize;
    shape.blocks = blocks;
    return shape;
}

void Lengths(Arguments& call) { GiveLengths(call); }
void Statistics(Arguments& call) { call.withStats = true; }

struct KeyCase {
    const char* name;
    Shape shape;
    Change change;
    uint64_t key;
    Platform platform = kAtlasA2;
};

class TopThetaIncrementalAttentionTilingKey : public testing::TestWithParam<KeyCase> {};

// Units stay whole where all are equal and divide evenly among the working cores of 48; the cube takes groups.
TEST_P(TopThetaIncrementalAttentionTilingKey, Key)
{
    const KeyCase& one = GetParam();
    const Result result = TileChanged(one.shape, one.change, one.platform);
    EXPECT_EQ(result.error.message, "");
    EXPECT_EQ(result.tiling.key, one.key);
    EXPECT_EQ(result.tiling.scheduleMode, one.key % 10 == TOPTHETA_KEY_SPLIT ? 1U : 0U) << "all blocks at once";
}

const Shape kEven = {6, 8}, kFarRows = WithLayout({1, 2, 4, 512, 300}, "BSND");
const KeyCase kKeys[] = {
    {"Even", kEven, Unchanged, TOPTHETA_KEY_WHOLE},
    {"Statistics", kEven, Statistics, TOPTHETA_KEY_WHOLE},
    {"Uneven", {5, 8, 2, 32, 300}, Unchanged, TOPTHETA_KEY_SPLIT},
    {"FewShort", {1, 8, 2, 32, 256}, Unchanged, TOPTHETA_KEY_WHOLE},
    {"FewLong", {1, 8, 2, 32, 257}, Unchanged, TOPTHETA_KEY_SPLIT},
    {"Lengths", kEven, Lengths, TOPTHETA_KEY_SPLIT},
    {"Starts", kEven, [](Arguments& call) { Give(call, InputIndex::kKeyStart, ElementType::kInt32, {6}); },
     TOPTHETA_KEY_SPLIT},
    {"Paged", Paged({6, 8, 2, 32, 4}, Cache::kPaged4d, 16), Unchanged, TOPTHETA_KEY_SPLIT},
    {"Part", kEven, [](Arguments& call) { call.partial = true; }, TOPTHETA_KEY_WHOLE},
    {"PostSoftmax", kEven, PostSoftmax, TOPTHETA_KEY_WHOLE_POST_SOFTMAX},
    {"PostSoftmaxLengths", kEven,
     [](Arguments& call) {
         PostSoftmax(call);
         GiveLengths(call);
     },
     TOPTHETA_KEY_SPLIT_POST_SOFTMAX},
    {"HeadBlocks", {24, 1, 12}, Unchanged, TOPTHETA_KEY_WHOLE, kWithoutCubes},
    {"HeadBlocksWhoseRowsAreAddedUp", {24, 1, 12}, Statistics, TOPTHETA_KEY_SPLIT, kWithoutCubes},
};

INSTANTIATE_TEST_SUITE_P(Calls, TopThetaIncrementalAttentionTilingKey, testing::ValuesIn(kKeys),
                         [](const auto& info) { return std::string(info.param.name); });

class TopThetaIncrementalAttentionTilingCube : public testing::TestWithParam<KeyCase> {};

TEST_P(TopThetaIncrementalAttentionTilingCube, Key)
{
    const KeyCase& one = GetParam();
    const Result result = TileChanged(one.shape, one.change, one.platform);
    EXPECT_EQ(result.error.message, "");
    EXPECT_EQ(result.tiling.key, one.key);
    EXPECT_EQ(result.tiling.blockDim * 2, result.tiling.data.call.cores) << "a cube core for two vector cores";
}

const KeyCase kCubeKeys[] = {
    {"Triples", {48, 1, 3}, Unchanged, TOPTHETA_KEY_CUBE},
    {"Bfloat16Pairs", WithDtype({48, 1, 2}, ElementType::kBfloat16), Unchanged, TOPTHETA_KEY_CUBE},
    {"TwoHeadBlocks", {24, 1, 12}, Unchanged, TOPTHETA_KEY_CUBE},
    {"RowsFarApart", kFarRows, [](Arguments& call) { call.keyStrides = {16, 512, 65520}; }, TOPTHETA_KEY_CUBE},
    {"PostSoftmax", {48, 1, 3}, PostSoftmax, TOPTHETA_KEY_CUBE_POST_SOFTMAX},
    {"Tokens",
     {48, 1, 3},
     [](Arguments& call) { Resize(call, InputIndex::kQuery, {48, 3, 2, 32}); },
     TOPTHETA_KEY_CUBE_TOKENS},
};

INSTANTIATE_TEST_SUITE_P(Calls, TopThetaIncrementalAttentionTilingCube, testing::ValuesIn(kCubeKeys),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TopThetaIncrementalAttentionTiling, RowsTooFarApartForTheCube)
{
    Arguments call = MakeCall(kFarRows);
    call.keyStrides = {16, 512, 65536};
    EXPECT_EQ(Tile(call).tiling.key, TOPTHETA_KEY_SPLIT);
}

struct L2Case {
    const char* what;
    Shape shape;
    Change change;
    uint64_t l2Bytes;
    bool past;
};

TEST(TopThetaIncrementalAttentionTiling, CachesThatDoNotFitTheL2GoPastIt)
{
    const Shape plain = {2, 4, 1, 64, 2048};  // K and V are 4 MiB together; the limit is 1.2 times the L2
    const Shape grouped = {2, 4, 2, 64, 2048};
    const L2Case cases[] = {
        {"the size is not known", plain, Unchanged, 0, false},
        {"just too large", plain, Unchanged, 10 * kMiB / 3 - 1, true},
        {"just fits", plain, Unchanged, 10 * kMiB / 3 + 1, false},
        {"far too large", plain, Unchanged, kMiB, true},
        {"two head blocks read it", {2, 4, 9, 64, 2048}, Unchanged, 3 * kMiB, false},
        {"the sequences share it", grouped, [](Arguments& call) { call.keyStrides = {0, 2048 * 64, 64}; }, 3 * kMiB,
         false},
        {"the heads share it", grouped, [](Arguments& call) { call.valueStrides = {4 * 2048 * 64, 0, 64}; }, 3 * kMiB,
         false},
        {"few pages, whatever the table", Paged({64, 4, 2, 64, 16}, Cache::kPaged4d, 128, 16), Unchanged, 3 * kMiB,
         false},
    };
    for (const L2Case& one : cases) {
        const Platform platform = {48, 24, 192 * 1024, one.l2Bytes, kSystemBytes};
        EXPECT_EQ(TileChanged(one.shape, one.change, platform).tiling.data.call.pastL2, one.past ? 1 : 0) << one.what;
    }
}

TEST(TopThetaIncrementalAttentionTiling, ModesReachTheKernel)
{
    Arguments call = MakeCall({});
    call.sdc = "exp_threshold";
    call.sdcGamma = 0.3F;
    call.scaleValue = -0.7F;
    EXPECT_EQ(Tile(call).tiling.data.call.sdcGamma, 0.3F);
    EXPECT_EQ(Tile(call).tiling.data.call.scaleValue, -0.7F);
    const std::pair<const char*, int> paths[] = {{"auto", 0}, {"gather", 1}, {"dense", 2}};
    for (const auto& [name, code] : paths) {
        call.path = name;
        EXPECT_EQ(Tile(call).tiling.data.call.path, code) << name;
    }
}

class TopThetaIncrementalAttentionTilingInt8 : public testing::TestWithParam<Shape> {};

TEST_P(TopThetaIncrementalAttentionTilingInt8, ScalesReachTheKernel)
{
    const Shape& shape = GetParam();
    const int64_t rows = shape.Paged() ? shape.blockSize : shape.rows;
    Arguments call = MakeCall(shape);
    MakeInt8(call, false);
    call.keyScaleStrides = {1000, 100, 1};
    EXPECT_EQ(Tile(call).error.message, "");
    EXPECT_EQ(Tile(call).tiling.data.keyScales.perToken, 0U);
    EXPECT_EQ(Tile(call).tiling.data.keyScales.outer, 0) << "scales of channels have no strides";
    MakeInt8(call, true);
    const toptheta::ScaleTiling strided = Tile(call).tiling.data.keyScales;
    const toptheta::ScaleTiling contiguous = Tile(call).tiling.data.valueScales;
    EXPECT_EQ(Sizes({strided.outer, strided.head, strided.perToken}), Sizes({1000, 100, 1}));
    EXPECT_EQ(Sizes({contiguous.outer, contiguous.head, contiguous.perToken}),
              Sizes({shape.keyValueHeads * rows, rows, 1}));
}

INSTANTIATE_TEST_SUITE_P(Layouts, TopThetaIncrementalAttentionTilingInt8,
                         testing::Values(Shape{}, WithLayout({}, "BSND"), WithLayout({}, "BSH"),
                                         Paged({2, 2, 2, 32, 4}, Cache::kPaged4d, 16),
                                         Paged({2, 2, 2, 32, 4}, Cache::kPaged3d, 16)));

TEST(TopThetaIncrementalAttentionTiling, LargestCall)
{
    Arguments call = MakeCall({65536, 8, 1, 512, 262144});
    GiveLengths(call, ElementType::kInt64);
    const Result result = Tile(call);
    EXPECT_EQ(result.error.message, "");
    const toptheta::CacheStrides strides = result.tiling.data.call.key;
    EXPECT_EQ(Sizes({strides.outer, strides.head, strides.row}), Sizes({8LL * 262144 * 512, 262144 * 512, 512}));
}

TEST(TopThetaIncrementalAttentionTiling, ScoresOfPostSoftmaxReachTheirLimit)
{
    Arguments call = MakeCall({16, 16, 1, 32, 262144});  // [16, 16, 262144] float32 is 256 MiB
    PostSoftmax(call);
    GiveLengths(call);
    const Result result = Tile(call);
    EXPECT_EQ(result.error.message, "");
    EXPECT_GT(result.tiling.workspaceBytes, kSystemBytes + kMostScores);
}

TEST(TopThetaIncrementalAttentionTiling, KindsOfErrors)
{
    Arguments value = MakeCall({}), type = MakeCall({});
    value.numHeads = 3;
    type.inputs[InputIndex::kThreshold].type = ElementType::kFloat16;
    EXPECT_EQ(Tile(MakeCall({})).error.kind, toptheta::ErrorKind::kNone);
    EXPECT_EQ(Tile(value).error.kind, toptheta::ErrorKind::kValue);
    EXPECT_EQ(Tile(type).error.kind, toptheta::ErrorKind::kType);
    EXPECT_EQ(Tile(MakeCall({2, 2, 2, 40})).error.kind, toptheta::ErrorKind::kNotSupported);
}

}  // namespace
}  // namespace toptheta_ut
