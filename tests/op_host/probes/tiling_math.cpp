// The tiling maths without CANN or its stand-ins, as C functions for ctypes.
#include "tiling_math.h"

namespace {

struct EqualRows {
    uint32_t rows;
    uint32_t operator()(uint32_t) const { return rows; }
};

toptheta::TensorDescription Describe(toptheta::ElementType type, std::vector<int64_t> dims)
{
    return {true, type, std::move(dims)};
}

toptheta::Arguments ValidArguments()
{
    using toptheta::ElementType;
    using toptheta::InputIndex;
    toptheta::Arguments arguments;
    arguments.inputs[InputIndex::kQuery] = Describe(ElementType::kFloat16, {2, 4, 1, 32});
    arguments.inputs[InputIndex::kKey] = Describe(ElementType::kFloat16, {2, 2, 64, 32});
    arguments.inputs[InputIndex::kValue] = arguments.inputs[InputIndex::kKey];
    arguments.inputs[InputIndex::kThreshold] = Describe(ElementType::kFloat32, {4});
    arguments.outputs[toptheta::OutputIndex::kAttentionOut] = arguments.inputs[InputIndex::kQuery];
    arguments.numHeads = 4;
    arguments.numKeyValueHeads = 2;
    return arguments;
}

uint32_t KindOf(const toptheta::Arguments& arguments, const toptheta::Platform& platform)
{
    toptheta::Tiling tiling;
    return static_cast<uint32_t>(toptheta::ComputeTiling(arguments, platform, tiling).kind);
}

}  // namespace

extern "C" {

uint32_t ScoreRowsOf(uint32_t group, uint32_t headDim, uint32_t bfloat16)
{
    return toptheta::MakeUbLayout({headDim, toptheta::HeadBlockFor(group, headDim), bfloat16 != 0, true}).scoreRows;
}

void ChoiceOf(uint32_t headDim, uint32_t headBlock, uint32_t bfloat16, uint32_t twoPhases, uint32_t cube,
              uint32_t* choice)
{
    const toptheta::LayoutChoice chosen =
        toptheta::ChooseLayout({headDim, headBlock, bfloat16 != 0, twoPhases != 0, cube != 0},
                               cube != 0 ? toptheta::kCubeChunkRows : toptheta::kMostInt8ChunkRows);
    choice[0] = chosen.slots;
    choice[1] = chosen.chunkRows;
}

// For each unit, when every sequence has `rows` rows: segments that are all of it, and segments that are a part of it,
// over all cores; and the cores that have any. Returns whether the kernel lets the cores meet.
uint32_t SegmentsOfUnits(uint32_t batch, uint32_t kvHeads, uint32_t headBlocks, uint32_t rows, uint32_t cores,
                         uint32_t* whole, uint32_t* parts, uint32_t* atWork)
{
    EqualRows rowsOf = {rows};
    const toptheta::WorkTotal total = toptheta::TotalWork(batch, kvHeads * headBlocks, cores, rowsOf);
    for (uint32_t core = 0; core < cores; core++) {
        toptheta::SegmentIterator<EqualRows> iterator(total, core, kvHeads, headBlocks, rowsOf);
        bool works = false;
        for (toptheta::Segment segment; iterator.Next(segment);) {
            const uint32_t unit = (segment.batch * kvHeads + segment.kvHead) * headBlocks + segment.headBlock;
            (toptheta::IsWhole(segment) ? whole : parts)[unit]++;
            works = true;
        }
        *atWork += works ? 1 : 0;
    }
    return toptheta::AnyCut(total, batch * kvHeads * headBlocks);
}

// The kind of error of four calls: a valid one, a wrong value, a wrong dtype, a shape that is not supported.
void ErrorKinds(uint32_t kinds[4])
{
    const toptheta::Platform platform = {48, 24, 192 * 1024, 0};
    const toptheta::Arguments valid = ValidArguments();
    toptheta::Arguments value = valid;
    value.numHeads = 3;
    toptheta::Arguments type = valid;
    type.inputs[toptheta::InputIndex::kThreshold].type = toptheta::ElementType::kFloat16;
    toptheta::Arguments unsupported = valid;
    unsupported.inputs[toptheta::InputIndex::kQuery].dims[3] = 40;
    const toptheta::Arguments* const calls[] = {&valid, &value, &type, &unsupported};
    for (uint32_t i = 0; i < 4; i++) {
        kinds[i] = KindOf(*calls[i], platform);
    }
}

}  // extern "C"
