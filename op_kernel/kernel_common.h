// Shared by all parts of the kernel: the toolkit header, constants, event ids and the map of the Unified Buffer.
#pragma once

#include "kernel_operator.h"

#define TOPTHETA_DEVICE __aicore__
#include "top_theta_incremental_attention_tiling_data.h"
#include "ub_layout.h"

namespace toptheta {

using AscendC::GlobalTensor;
using AscendC::HardEvent;
using AscendC::LocalTensor;
using AscendC::PipeBarrier;
using AscendC::SetFlag;
using AscendC::WaitFlag;

// Stand for -inf and +inf: no instruction compares, subtracts or exponentiates an infinity, of which no document says
// what a board makes. Nothing passes "score > kLowest" but real scores do.
constexpr float kLowest = -3.402823466e38f;
constexpr float kHighest = -kLowest;
constexpr float kInfinity = __builtin_inff();  // of outputs alone
constexpr uint32_t kLanes = 64;        // float32 elements of one vector repeat
constexpr uint32_t kBlockFloats = 8;   // float32 elements of a 32-byte block
constexpr uint32_t kBlockHalves = 16;

// Event ids by pipe pair. MTE2_V and V_MTE2: 0..3 slots of the ring of tiles, 4 the V rows, 5 the parameters of a unit;
// the parts of other cores take the first of MTE2_V once the tiles are done.
constexpr int32_t kHeaderEvent = 0;
constexpr int32_t kSumEvent = 1;
constexpr int32_t kValueEvent = 4;
constexpr int32_t kParameterEvent = 5;
// the first V rows of a list that comes behind the last K tile: until the next unit, nothing asks for parameters
constexpr int32_t kFirstRowsEvent = kParameterEvent;
// MTE2_S: 0 and 1 slices of the block table of K in turn, 2 and 3 of V, 4 lengths, 5 headers of parts.
constexpr int32_t kKeyTableEvent = 0;
constexpr int32_t kValueTableEvent = 2;
constexpr int32_t kLengthEvent = 4;
constexpr int32_t kHeaderCountEvent = 5;
constexpr int32_t kEvent = 0;          // pairs that need one id only

TOPTHETA_DEVICE inline uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }
TOPTHETA_DEVICE inline uint32_t Most(uint32_t a, uint32_t b) { return a > b ? a : b; }
// A number from a device tensor, which the host has not seen, inside 0 to `most`.
TOPTHETA_DEVICE inline uint32_t Clamp(int64_t value, uint32_t most)
{
    if (value <= 0) {
        return 0;
    }
    return value < most ? static_cast<uint32_t>(value) : most;
}
TOPTHETA_DEVICE inline uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// bfloat16 has no vector arithmetic on this chip; the kernel casts it to float32.
template <typename T>
struct IsBfloat16 {
    static constexpr bool kValue = false;
};
template <>
struct IsBfloat16<bfloat16_t> {
    static constexpr bool kValue = true;
};

template <typename T>
struct IsInt8 {
    static constexpr bool kValue = false;
};
template <>
struct IsInt8<int8_t> {
    static constexpr bool kValue = true;
};

// The dtypes of a call: of the query and the output, and of the rows of both caches. `kSeveral`: the call may have
// several query tokens of a sequence (query_tokens.h).
template <typename Q, typename K, typename V, bool kSeveral = false>
struct CallTypes {
    using Query = Q;
    using Key = K;
    using Value = V;
    static constexpr bool kTokens = kSeveral;
};

// Running quantities, one 32-byte block of equal values for each head of the block.
enum StateQuantity : uint32_t {
    kMaximum,        // of all scores so far
    kNewMaximum,
    kCorrection,     // exp(old maximum - new maximum)
    kTotalMass,      // sum of exp(score - maximum) over all keys
    kKeptMass,       // R: the same over the kept; lies behind kTotalMass, since both are updated together
    kKeptCount,      // only where several heads share a list; lies behind kKeptMass, since all three begin with 0
    kThreshold,      // as given
    kLimit,          // the score that an element must exceed
    kOfflineMass,    // discarded_mass as given
    kSink,           // learnable_sink as given
    kRowLse,         // row_lse as given, or the log-sum-exp of the row
    kEstimate,       // the discarded mass after SDC
    kDenominator,
    kSinkMass,       // exp(sink - maximum)
    kShare,          // of VMC: estimate / denominator
    kScoreScale,     // of int8 K: scale_value times what was taken out of the query
    kQuantities
};
static_assert(kQuantities <= kStateQuantities, "the layout has room for every running quantity");

// Local tensors by name.
class UbMap {
public:
    TOPTHETA_DEVICE inline void Init(AscendC::TPipe* pipe, const UbLayout& layout, uint32_t headBlock)
    {
        layout_ = layout;
        headBlock_ = headBlock;
        pipe->InitBuffer(buffer_, layout.total);
    }

    template <typename T>
    TOPTHETA_DEVICE inline LocalTensor<T> At(uint32_t offset, uint32_t count)
    {
        return buffer_.GetWithOffset<T>(count, offset);
    }

    template <typename T>
    TOPTHETA_DEVICE inline LocalTensor<T> KeyTiles()
    {
        return At<T>(layout_.keyTiles, (layout_.partials - layout_.keyTiles) / sizeof(T));
    }
    TOPTHETA_DEVICE inline LocalTensor<float> Partials() { return At<float>(layout_.partials, kPartialBytes / 4); }
    TOPTHETA_DEVICE inline LocalTensor<float> CastPiece() { return At<float>(layout_.castPiece, kPartialBytes / 4); }
    TOPTHETA_DEVICE inline LocalTensor<float> Scores(uint32_t head, uint32_t row, uint32_t rows)
    {
        return At<float>(layout_.scores + (head * layout_.scoreRows + row) * 4, rows);
    }
    // The row at which the scores of every other chunk from a cube core lie: where V rows of short lists lie otherwise.
    TOPTHETA_DEVICE inline uint32_t SecondScores() const { return (layout_.valueRows - layout_.scores) / 4; }
    TOPTHETA_DEVICE inline LocalTensor<float> Weights()
    {
        return At<float>(layout_.weights, headBlock_ * layout_.chunkRows);
    }
    TOPTHETA_DEVICE inline LocalTensor<uint16_t> RowNumbers()
    {
        return At<uint16_t>(layout_.rowNumbers, layout_.chunkRows);
    }
    TOPTHETA_DEVICE inline LocalTensor<int32_t> RowOffsets(uint32_t rows)
    {
        return At<int32_t>(layout_.rowOffsets, rows);
    }
    TOPTHETA_DEVICE inline LocalTensor<uint16_t> RowList() { return At<uint16_t>(layout_.rowList, layout_.chunkRows); }
    // `count` masks, one behind the other
    TOPTHETA_DEVICE inline LocalTensor<uint8_t> Mask(uint32_t index, uint32_t count = 1)
    {
        return At<uint8_t>(layout_.masks + index * MaskBytes(layout_.chunkRows), count * MaskBytes(layout_.chunkRows));
    }
    // of what any head at work keeps
    TOPTHETA_DEVICE inline LocalTensor<uint8_t> AnyMask() { return Mask(heads_ > 1 ? heads_ : 0); }
    template <typename T>
    TOPTHETA_DEVICE inline LocalTensor<T> ValueRows(uint32_t headDim)
    {
        return At<T>(layout_.valueRows, layout_.valueListRows * headDim);
    }
    template <typename T>
    TOPTHETA_DEVICE inline LocalTensor<T> Spread()
    {
        return At<T>(layout_.spread, kLanes * kBlockBytes / sizeof(T));
    }
    template <typename T>
    TOPTHETA_DEVICE inline LocalTensor<T> SpreadSource()
    {
        return At<T>(layout_.spread + kLanes * kBlockBytes, 256 / sizeof(T));
    }
    template <typename T>
    TOPTHETA_DEVICE inline LocalTensor<T> Query(uint32_t count)
    {
        return At<T>(layout_.query, count);
    }
    TOPTHETA_DEVICE inline LocalTensor<float> FirstColumns(uint32_t head, uint32_t heads = 1)
    {
        return At<float>(layout_.firstColumns + head * kFirstColumnBytes, heads * kLanes);
    }
    TOPTHETA_DEVICE inline LocalTensor<float> Accumulator(uint32_t head, uint32_t headDim)
    {
        return At<float>(layout_.accumulator + head * headDim * 4, headDim);
    }
    // of all heads at work
    TOPTHETA_DEVICE inline LocalTensor<float> Accumulators(uint32_t headDim)
    {
        return At<float>(layout_.accumulator, heads_ * headDim);
    }
    TOPTHETA_DEVICE inline LocalTensor<int32_t> PartCounts()
    {
        return At<int32_t>(layout_.partCounts, headBlock_ * kBlockFloats);
    }
    TOPTHETA_DEVICE inline LocalTensor<half> HalfPiece()
    {
        return At<half>(layout_.halfPiece, kHalfPieces * kPartialBytes / sizeof(half));
    }
    // rings of the scales of tokens
    TOPTHETA_DEVICE inline LocalTensor<float> KeyScales() { return At<float>(layout_.keyScales, ScaleRows(layout_)); }
    // of the K rows whose scores a cube core has made
    TOPTHETA_DEVICE inline LocalTensor<float> ArrivedScales()
    {
        return At<float>(layout_.keyScales, layout_.chunkRows);
    }
    TOPTHETA_DEVICE inline LocalTensor<float> ValueScales()
    {
        return At<float>(layout_.valueScales, ScaleRows(layout_));
    }
    // scales by channel
    TOPTHETA_DEVICE inline LocalTensor<float> ValueChannels(uint32_t headDim, uint32_t parity)
    {
        return At<float>(layout_.channels + parity * headDim * 4, headDim);
    }
    TOPTHETA_DEVICE inline LocalTensor<float> KeyChannels(uint32_t headDim)
    {
        return At<float>(layout_.channels + 2 * headDim * 4, headDim);
    }
    // inputs as copied: one block for each per-head input, then bfloat16 queries
    TOPTHETA_DEVICE inline LocalTensor<float> Parameters()
    {
        return At<float>(layout_.parameters, kParameterBlocks * kBlockFloats);
    }
    template <typename T>
    TOPTHETA_DEVICE inline LocalTensor<T> RawQuery(uint32_t count)
    {
        return At<T>(layout_.parameters + kParameterBlocks * kBlockBytes, count);
    }
    // of a token of the block
    TOPTHETA_DEVICE inline LocalTensor<float> ValueMean(uint32_t headDim, uint32_t parity, uint32_t token = 0)
    {
        return At<float>(layout_.valueMean + (parity * layout_.blockTokens + token) * headDim * 4, headDim);
    }
    TOPTHETA_DEVICE inline LocalTensor<float> State(StateQuantity quantity)
    {
        return At<float>(layout_.state + quantity * headBlock_ * kBlockBytes, heads_ * kBlockFloats);
    }
    // `quantities` from kTotalMass on: kKeptMass, kKeptCount
    TOPTHETA_DEVICE inline LocalTensor<float> Masses(uint32_t quantities = 2)
    {
        return At<float>(layout_.state + kTotalMass * headBlock_ * kBlockBytes, quantities * headBlock_ * kBlockFloats);
    }
    // reductions: 192 + 24 values, two results per head, and their broadcast
    TOPTHETA_DEVICE inline LocalTensor<float> ReduceFirst() { return At<float>(layout_.scratch, 192); }
    TOPTHETA_DEVICE inline LocalTensor<float> ReduceSecond() { return At<float>(layout_.scratch + 768, 32); }
    TOPTHETA_DEVICE inline LocalTensor<float> PerHead() { return At<float>(layout_.scratch + 896, 2 * kBlockFloats); }
    TOPTHETA_DEVICE inline LocalTensor<float> PerHeadBlocks() { return At<float>(layout_.scratch + 960, 2 * kLanes); }
    // one block of 1.0
    TOPTHETA_DEVICE inline LocalTensor<float> Ones() { return At<float>(layout_.scratch + 1472, kBlockFloats); }

    TOPTHETA_DEVICE inline const UbLayout& Layout() const { return layout_; }
    // Heads at work now: the last block of a group may be smaller than the layout allows for.
    TOPTHETA_DEVICE inline void SetHeads(uint32_t heads) { heads_ = heads; }
    TOPTHETA_DEVICE inline uint32_t Heads() const { return heads_; }
    // 32-byte blocks from one running quantity to the next
    TOPTHETA_DEVICE inline uint8_t StateStride() const { return static_cast<uint8_t>(headBlock_); }
    // float32 elements of one running quantity
    TOPTHETA_DEVICE inline uint32_t StateCount() const { return heads_ * kBlockFloats; }

private:
    AscendC::TBuf<AscendC::TPosition::VECCALC> buffer_;
    UbLayout layout_;
    uint32_t headBlock_ = 0;
    uint32_t heads_ = 0;
};

}  // namespace toptheta
