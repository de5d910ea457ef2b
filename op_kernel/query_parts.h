// Queries for a cube core that multiplies int8 K rows: the vector core makes a high and a low int8 part of each.
//
// With s, the scales of the channels of K, and m = max |query * s|:
//
//     scale = m / 32512      integer = rint(query * s / scale)      high = floor(integer / 256 + 1/2)
//     low = integer - 256 * high
//
// |integer| <= 127 * 256, so high lies in -127 .. 127 and low in -128 .. 127. Every step after the rounding is exact.
#pragma once

#include "cube_queries.h"
#include "reductions.h"

namespace toptheta {

template <typename Types>
class QueryParts {
public:
    using T = typename Types::Query;

    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, const KernelTensors& tensors,
                                     GM_ADDR workspace)
    {
        ub_ = ub;
        tiling_ = tiling;
        perChannel_ = tensors.scales->keyScales.perToken == 0;
        query_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(tensors.parameters.query));
        channels_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.keyScale));
        parts_.SetGlobalBuffer(reinterpret_cast<__gm__ int8_t*>(workspace + QuerySlotsOffset(*tiling)));
        scales_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(workspace + QuerySlotsOffset(*tiling)));
    }

    // The parts for all segments of this core. The cube core hears of the first ones at once.
    template <typename Segments>
    TOPTHETA_DEVICE inline void MakeAll(Segments segments, uint32_t core)
    {
        AscendC::Duplicate(ub_->PerHead(), 0.0f, static_cast<int32_t>(2 * kBlockFloats));
        // rows of empty sequences may be on their way out
        SetFlag<HardEvent::MTE3_V>(kPartsEvent);
        WaitFlag<HardEvent::MTE3_V>(kPartsEvent);
        Segment segment;
        Segment next;
        bool more = segments.Next(next);
        uint32_t made = 0;
        if (more) {
            CopyIn(next, 0);
        }
        for (; more; made++) {
            segment = next;
            more = segments.Next(next);
            if (more) {
                CopyIn(next, (made + 1) % kTurns);
            }
            Make(segment, core, made);
            if (made == 0) {
                AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(PartsReady(0));
            }
        }
        Finish(made);
    }

    // Copies the scales of a segment's queries to the state of its heads.
    TOPTHETA_DEVICE inline void CopyScales(const Segment& segment, uint32_t core)
    {
        const uint32_t heads = HeadsOf<Types::kTokens>(*tiling_, segment).heads;
        const uint32_t place = ub_->Layout().state + kScoreScale * tiling_->headBlock * kBlockBytes;
        const uint32_t count = heads * kBlockFloats;
        AscendC::DataCopy(ub_->template At<float>(place, count), scales_[ScalesAt(segment, core)], count);
    }

private:
    static constexpr uint32_t kTurns = 2;
    static constexpr int32_t kPartsEvent = 2;  // MTE3_V, and the next
    static constexpr float kLargest = 127 * kPartBase;
    static constexpr float kTiny = 1e-30f;     // stands for the largest of a query of zeros

    TOPTHETA_DEVICE inline uint64_t ScalesAt(const Segment& segment, uint32_t core) const
    {
        const uint64_t slot = QuerySlotOf(*tiling_, segment, core);
        return (slot + kQueryParts * tiling_->headBlock * tiling_->headDim) / sizeof(float);
    }

    TOPTHETA_DEVICE inline void CopyIn(const Segment& segment, uint32_t turn)
    {
        const HeadRange range = HeadsOf<Types::kTokens>(*tiling_, segment);
        const uint32_t D = tiling_->headDim;
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        CopyQueries(Raw(turn), range);
        if (perChannel_) {
            AscendC::DataCopy(Channels(turn), channels_[static_cast<uint64_t>(range.kvHead) * D], D);
        }
        SetFlag<HardEvent::MTE2_V>(turn);
    }

    TOPTHETA_DEVICE inline void CopyQueries(const LocalTensor<T>& to, const HeadRange& range)
    {
        const uint32_t blocks = tiling_->headDim * sizeof(T) / kBlockBytes;
        RowRuns<Types::kTokens> runs(*tiling_, range);
        for (RowRun run; runs.Next(run);) {
            const uint32_t gap = run.step * sizeof(T) / kBlockBytes - blocks;
            AscendC::DataCopy(
                to[run.first * tiling_->headDim], query_[run.element],
                AscendC::DataCopyParams(static_cast<uint16_t>(run.rows), blocks, static_cast<uint16_t>(gap), 0));
        }
    }

    TOPTHETA_DEVICE inline void Make(const Segment& segment, uint32_t core, uint32_t made)
    {
        const uint32_t turn = made % kTurns;
        const uint32_t heads = HeadsOf<Types::kTokens>(*tiling_, segment).heads;
        WaitFlag<HardEvent::MTE2_V>(turn);
        Widen(turn, heads);
        const LocalTensor<float> largest = FindLargest(heads);
        if (made >= kTurns) {
            WaitFlag<HardEvent::MTE3_V>(kPartsEvent + turn);
        }
        Divide(turn, heads, largest);
        Split(turn, heads);
        SetFlag<HardEvent::V_MTE3>(kEvent);
        WaitFlag<HardEvent::V_MTE3>(kEvent);
        const uint32_t count = heads * tiling_->headDim;
        AscendC::DataCopy(parts_[QuerySlotOf(*tiling_, segment, core)], Parts(turn), kQueryParts * count);
        AscendC::DataCopy(scales_[ScalesAt(segment, core)], Scales(turn), heads * kBlockFloats);
        SetFlag<HardEvent::MTE3_V>(kPartsEvent + turn);
    }

    // The rest of the flags. The copies in that come next wait for the vector unit, and so for all that was here.
    TOPTHETA_DEVICE inline void Finish(uint32_t made)
    {
        for (uint32_t left = Least(made, kTurns); left > 0; left--) {
            WaitFlag<HardEvent::MTE3_V>(kPartsEvent + (made - left) % kTurns);
        }
        for (uint32_t flag = made > 0 ? 1 : 0; flag < kQueryFlags; flag++) {
            AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(PartsReady(flag));
        }
    }

    // query * s in float32
    TOPTHETA_DEVICE inline void Widen(uint32_t turn, uint32_t heads)
    {
        const uint32_t D = tiling_->headDim;
        AscendC::Cast(Wide(), Raw(turn), AscendC::RoundMode::CAST_NONE, heads * D);
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; perChannel_ && head < heads; head++) {
            AscendC::Mul(Wide()[head * D], Wide()[head * D], Channels(turn), static_cast<int32_t>(D));
        }
        PipeBarrier<PIPE_V>();
    }

    // A block of the largest magnitude of each head: halves of its row are folded until an instruction takes the rest.
    TOPTHETA_DEVICE inline LocalTensor<float> FindLargest(uint32_t heads)
    {
        const uint32_t D = tiling_->headDim;
        const uint8_t step = static_cast<uint8_t>(D / kBlockFloats);
        AscendC::Abs(Work(), Wide(), static_cast<int32_t>(heads * D));
        for (uint32_t column = kLanes; column < D; column += kLanes) {
            PipeBarrier<PIPE_V>();
            AscendC::Max(Work(), Work(), Work()[column], Least(kLanes, D - column), static_cast<uint8_t>(heads),
                         AscendC::BinaryRepeatParams(1, 1, 1, step, step, step));
        }
        PipeBarrier<PIPE_V>();
        AscendC::WholeReduceMax(ub_->PerHead(), Work(), static_cast<int32_t>(Least(kLanes, D)),
                                static_cast<int32_t>(heads), 1, 1, step, AscendC::ReduceOrder::ORDER_ONLY_VALUE);
        return SpreadPerHead(*ub_);
    }

    // Whole numbers, and what they are to be multiplied by.
    TOPTHETA_DEVICE inline void Divide(uint32_t turn, uint32_t heads, const LocalTensor<float>& largest)
    {
        const int32_t count = static_cast<int32_t>(heads * kBlockFloats);
        const LocalTensor<float> inverse = Scales(turn);
        AscendC::Maxs(largest, largest, kTiny, count);
        AscendC::Duplicate(inverse, kLargest, count);
        PipeBarrier<PIPE_V>();
        AscendC::Div(inverse, inverse, largest, count);
        PipeBarrier<PIPE_V>();
        WithBlocks<BlockOperation::kMultiply>(Wide(), inverse, heads, tiling_->headDim);
        PipeBarrier<PIPE_V>();
        AscendC::Muls(Scales(turn), largest, tiling_->scaleValue / kLargest, count);
        AscendC::Cast(Wide(), Wide(), AscendC::RoundMode::CAST_RINT, heads * tiling_->headDim);
        PipeBarrier<PIPE_V>();
    }

    TOPTHETA_DEVICE inline void Split(uint32_t turn, uint32_t heads)
    {
        const uint32_t count = heads * tiling_->headDim;
        const int32_t all = static_cast<int32_t>(count);
        const LocalTensor<float> high = Work();
        AscendC::Muls(high, Wide(), 1.0f / kPartBase, all);
        PipeBarrier<PIPE_V>();
        AscendC::Adds(high, high, 0.5f, all);
        PipeBarrier<PIPE_V>();
        AscendC::Cast(high, high, AscendC::RoundMode::CAST_FLOOR, count);
        PipeBarrier<PIPE_V>();
        AscendC::Axpy(Wide(), high, -kPartBase, all);
        AscendC::Cast(Halves(), high, AscendC::RoundMode::CAST_NONE, count);
        PipeBarrier<PIPE_V>();
        AscendC::Cast(Halves()[count], Wide(), AscendC::RoundMode::CAST_NONE, count);
        PipeBarrier<PIPE_V>();
        AscendC::Cast(Parts(turn), Halves(), AscendC::RoundMode::CAST_NONE, kQueryParts * count);
    }

    // ---- buffers, in the ring of tiles before anything else is there ----

    TOPTHETA_DEVICE inline uint32_t Elements() const { return tiling_->headBlock * tiling_->headDim; }
    TOPTHETA_DEVICE inline uint32_t TurnBytes() const
    {
        return (sizeof(T) + kQueryParts) * Elements() + tiling_->headDim * sizeof(float) +
               tiling_->headBlock * kBlockBytes;
    }
    template <typename U>
    TOPTHETA_DEVICE inline LocalTensor<U> At(uint32_t offset, uint32_t count)
    {
        return ub_->template At<U>(ub_->Layout().keyTiles + offset, count);
    }
    TOPTHETA_DEVICE inline LocalTensor<T> Raw(uint32_t turn) { return At<T>(turn * TurnBytes(), Elements()); }
    TOPTHETA_DEVICE inline LocalTensor<int8_t> Parts(uint32_t turn)
    {
        return At<int8_t>(turn * TurnBytes() + sizeof(T) * Elements(), kQueryParts * Elements());
    }
    TOPTHETA_DEVICE inline LocalTensor<float> Channels(uint32_t turn)
    {
        return At<float>(turn * TurnBytes() + (sizeof(T) + kQueryParts) * Elements(), tiling_->headDim);
    }
    TOPTHETA_DEVICE inline LocalTensor<float> Scales(uint32_t turn)
    {
        const uint32_t end = (turn + 1) * TurnBytes();
        return At<float>(end - tiling_->headBlock * kBlockBytes, tiling_->headBlock * kBlockFloats);
    }
    TOPTHETA_DEVICE inline LocalTensor<float> Wide() { return At<float>(kTurns * TurnBytes(), Elements()); }
    TOPTHETA_DEVICE inline LocalTensor<float> Work() { return ub_->Partials(); }
    TOPTHETA_DEVICE inline LocalTensor<half> Halves()
    {
        return ub_->template At<half>(ub_->Layout().partials + kPartialBytes / 2, kQueryParts * Elements());
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    bool perChannel_ = true;
    GlobalTensor<T> query_;
    GlobalTensor<float> channels_;
    GlobalTensor<int8_t> parts_;
    GlobalTensor<float> scales_;
};

}  // namespace toptheta
