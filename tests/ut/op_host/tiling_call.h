// Calls for the tests of the tiling: arguments that it accepts, ways to change them, and what comes of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "../../../op_host/tiling_math.h"

namespace toptheta_ut {

using toptheta::Arguments;
using toptheta::ElementType;
using toptheta::InputIndex;
using toptheta::OutputIndex;
using toptheta::Platform;
using toptheta::TensorDescription;
using Sizes = std::vector<int64_t>;

constexpr uint64_t kSystemBytes = 16ULL << 20;                                        // of a workspace, CANN's own
constexpr Platform kAtlasA2 = {48, 24, 192 * 1024, 192ULL << 20, kSystemBytes};       // Ascend 910B1
constexpr Platform kWithoutCubes = {48, 0, 192 * 1024, 192ULL << 20, kSystemBytes};

enum class Cache { kContiguous, kPaged4d, kPaged3d };

// Sizes of a call; `rows` are those of a sequence, or the pages of the block table.
struct Shape {
    int64_t batch = 2;
    int64_t keyValueHeads = 2;
    int64_t group = 2;
    int64_t headDim = 32;
    int64_t rows = 64;
    const char* layout = "BNSD";
    ElementType type = ElementType::kFloat16;
    Cache cache = Cache::kContiguous;
    int64_t blockSize = 0;
    int64_t blocks = 9;

    int64_t Heads() const { return keyValueHeads * group; }
    bool Paged() const { return cache != Cache::kContiguous; }

    Sizes Query() const
    {
        const std::string name = layout;
        return name == "BNSD"   ? Sizes{batch, Heads(), 1, headDim}
               : name == "BSND" ? Sizes{batch, 1, Heads(), headDim}
                                : Sizes{batch, 1, Heads() * headDim};
    }

    Sizes KeyValue() const
    {
        const int64_t outer = Paged() ? blocks : batch;
        const int64_t count = Paged() ? blockSize : rows;
        const std::string name = layout;
        if (cache == Cache::kPaged3d || (!Paged() && name == "BSH")) {
            return {outer, count, keyValueHeads * headDim};
        }
        return Paged() || name == "BNSD" ? Sizes{outer, keyValueHeads, count, headDim}
                                         : Sizes{outer, count, keyValueHeads, headDim};
    }
};

inline void Give(Arguments& call, uint32_t input, ElementType type, Sizes sizes)
{
    call.inputs[input] = {true, type, std::move(sizes)};
}

// Other sizes, the same dtype; an input that is absent becomes float32.
inline void Resize(Arguments& call, uint32_t input, Sizes sizes)
{
    const TensorDescription& now = call.inputs[input];
    Give(call, input, now.present ? now.type : ElementType::kFloat32, std::move(sizes));
}

inline Arguments MakeCall(const Shape& shape)
{
    Arguments call;
    Give(call, InputIndex::kQuery, shape.type, shape.Query());
    Give(call, InputIndex::kKey, shape.type, shape.KeyValue());
    Give(call, InputIndex::kValue, shape.type, shape.KeyValue());
    Give(call, InputIndex::kThreshold, ElementType::kFloat32, {shape.batch, shape.Heads()});
    call.numHeads = shape.Heads();
    call.numKeyValueHeads = shape.keyValueHeads;
    call.scaleValue = 0.125F;
    call.inputLayout = shape.layout;
    call.blockSize = shape.blockSize;
    if (shape.Paged()) {
        Give(call, InputIndex::kBlockTable, ElementType::kInt32, {shape.batch, shape.rows});
        Give(call, InputIndex::kActualSeqLengths, ElementType::kInt32, {shape.batch});
    }
    return call;
}

inline void GiveLengths(Arguments& call, ElementType type = ElementType::kInt32)
{
    Give(call, InputIndex::kActualSeqLengths, type, {call.Dims(InputIndex::kQuery)[0]});
}

// Both caches in int8, with scales for each channel or for each token and head.
inline void MakeInt8(Arguments& call, bool byToken)
{
    const Sizes cache = call.Dims(InputIndex::kKey);
    const int64_t heads = call.numKeyValueHeads;
    const bool headsFirst = cache.size() == 4 && (call.Paged() || call.inputLayout == "BNSD");
    const int64_t headDim = cache.size() == 3 ? cache[2] / heads : cache[3];
    const Sizes scales = byToken ? Sizes{cache[0], heads, headsFirst ? cache[2] : cache[1]} : Sizes{heads, headDim};
    call.keyAntiquantMode = call.valueAntiquantMode = !byToken ? 0 : call.Paged() ? 5 : 3;
    for (const uint32_t input : {InputIndex::kKey, InputIndex::kValue}) {
        Give(call, input, ElementType::kInt8, cache);
    }
    for (const uint32_t input : {InputIndex::kKeyAntiquantScale, InputIndex::kValueAntiquantScale}) {
        Give(call, input, ElementType::kFloat32, scales);
    }
}

// The outputs, of the shapes that inference gives, where the call does not have others.
inline void CompleteOutputs(Arguments& call)
{
    const Sizes query = call.Dims(InputIndex::kQuery);
    const int64_t tokens = query[call.inputLayout == "BNSD" ? 2 : 1];
    const Sizes none = {0}, keyValue = {query[0], call.numKeyValueHeads};
    const Sizes rows = tokens == 1 ? Sizes{query[0], call.numHeads} : Sizes{query[0], call.numHeads, tokens};
    const bool stats = call.withStats, part = call.partial;
    const Sizes sizes[] = {part ? none : query,     stats ? rows : none, stats || part ? rows : none,
                           stats ? keyValue : none, part ? query : none, part ? rows : none,
                           part ? rows : none,      part ? rows : none};
    for (uint32_t output = 0; output < OutputIndex::kCount; output++) {
        if (!call.outputs[output].present) {
            call.outputs[output] = {true, ElementType::kFloat32, sizes[output]};
        }
    }
}

struct Result {
    toptheta::ArgumentError error;
    toptheta::Tiling tiling;
};

inline Result Tile(Arguments call, const Platform& platform = kAtlasA2)
{
    CompleteOutputs(call);
    Result result;
    result.error = toptheta::ComputeTiling(call, platform, result.tiling);
    return result;
}

// What a case of a table does to the call of its shape.
using Change = void (*)(Arguments&);

inline void Unchanged(Arguments&) {}
inline void PostSoftmax(Arguments& call) { call.placement = "post_softmax"; }

inline Result TileChanged(const Shape& shape, Change change, const Platform& platform = kAtlasA2)
{
    Arguments call = MakeCall(shape);
    change(call);
    return Tile(call, platform);
}

}  // namespace toptheta_ut
