// Units that are cut between cores: every core leaves its part in the workspace, and after SyncAll the cores of the
// unit combine the heads in turn.
#pragma once

#include "chunk_selection.h"
#include "unit_parameters.h"

namespace toptheta {

// One head of a combined unit.
struct CombinedHead {
    uint32_t kept;
    int32_t bestRow;
    bool bestListed;
};

class PartialExchange {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, GM_ADDR workspace)
    {
        ub_ = ub;
        tiling_ = tiling;
        slotFloats_ = tiling->headBlock * (kBlockFloats + tiling->headDim);
        slots_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(workspace + tiling->partialOffset));
        SetFlag<HardEvent::MTE3_S>(kEvent);
    }

    TOPTHETA_DEVICE inline void Drain() { WaitFlag<HardEvent::MTE3_S>(kEvent); }

    // Leaves maximum, masses, counts and accumulators of this core's part.
    TOPTHETA_DEVICE inline void Store(const Segment& segment, uint32_t core, const HeadResult* results,
                                      uint32_t listRows)
    {
        const uint64_t slot = (storeFrom_ + SlotOf(segment, core)) * slotFloats_;
        LocalTensor<float> headers = ub_->PerHeadBlocks();
        const uint32_t headerFloats = ub_->Heads() * kBlockFloats;
        WaitFlag<HardEvent::MTE3_S>(kEvent);
        SetFlag<HardEvent::V_S>(kEvent);
        WaitFlag<HardEvent::V_S>(kEvent);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            WriteHeader(headers[head * kBlockFloats], head, results[head], listRows);
        }
        SetFlag<HardEvent::S_MTE3>(kEvent);
        WaitFlag<HardEvent::S_MTE3>(kEvent);
        CopyOut(slot, headers, headerFloats);
        SetFlag<HardEvent::MTE3_S>(kEvent);
        SetFlag<HardEvent::V_MTE3>(kEvent);
        WaitFlag<HardEvent::V_MTE3>(kEvent);
        const uint32_t count = ub_->Heads() * tiling_->headDim;
        CopyOut(slot + headerFloats, ub_->At<float>(ub_->Layout().accumulator, count), count);
    }

    // Starts the copies of the headers of all parts of a unit with `heads` heads.
    TOPTHETA_DEVICE inline void CopyHeaders(const Segment& segment, uint32_t heads)
    {
        parts_ = segment.lastCore - segment.firstCore + 1;
        heads_ = heads;
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        SetFlag<HardEvent::S_MTE2>(kEvent);
        WaitFlag<HardEvent::S_MTE2>(kEvent);
        LoadParts(Headers(), segment, 0, 0, parts_, heads * kBlockFloats);
        SetFlag<HardEvent::MTE2_V>(kHeaderEvent);
        SetFlag<HardEvent::MTE2_S>(kLengthEvent);
    }

    TOPTHETA_DEVICE inline void WaitForHeaders()
    {
        WaitFlag<HardEvent::MTE2_V>(kHeaderEvent);
        WaitFlag<HardEvent::MTE2_S>(kLengthEvent);
    }

    // Starts the copies of the sums of the parts from `first` on, as many as there is room for.
    TOPTHETA_DEVICE inline void CopySums(const Segment& segment, uint32_t head, uint32_t first)
    {
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        LoadParts(Sums(), segment, heads_ * kBlockFloats + head * tiling_->headDim, first, BatchFrom(first),
                  tiling_->headDim);
        SetFlag<HardEvent::MTE2_V>(kSumEvent);
    }

    // Combines one head, whose first sums are on the way, into the state and the accumulator of head 0.
    TOPTHETA_DEVICE inline CombinedHead Combine(const Segment& segment, uint32_t head)
    {
        CombineMasses(head, 0);
        AscendC::Duplicate(ub_->Accumulator(0, tiling_->headDim), 0.0f, static_cast<int32_t>(tiling_->headDim));
        for (uint32_t part = 0; part < parts_; part += BatchFrom(part)) {
            if (part > 0) {
                CopySums(segment, head, part);
            }
            WaitFlag<HardEvent::MTE2_V>(kSumEvent);
            AddSums(part, BatchFrom(part));
        }
        return CombineCounts(head);
    }

    // Masses alone, for the log-sum-exp that post-softmax needs before it selects.
    TOPTHETA_DEVICE inline void CombineAllMasses()
    {
        for (uint32_t head = 0; head < heads_; head++) {
            CombineMasses(head, head);
        }
    }

    // Rows read by all head blocks of a group, from the workspace.
    TOPTHETA_DEVICE inline uint32_t SumUnitRows(GlobalTensor<int32_t>& unitRows, uint64_t offset)
    {
        const uint32_t blocks = tiling_->headBlocks;
        LocalTensor<int32_t> rows = ub_->At<int32_t>(ub_->Layout().keyTiles, blocks * kBlockFloats);
        AscendC::DataCopyPad(rows, unitRows[offset],
                             AscendC::DataCopyExtParams(static_cast<uint16_t>(blocks), sizeof(int32_t),
                                                        kBlockBytes - sizeof(int32_t), 0, 0),
                             AscendC::DataCopyPadExtParams<int32_t>(false, 0, 0, 0));
        SetFlag<HardEvent::MTE2_S>(kLengthEvent);
        WaitFlag<HardEvent::MTE2_S>(kLengthEvent);
        uint32_t sum = 0;
        for (uint32_t block = 0; block < blocks; block++) {
            sum += static_cast<uint32_t>(rows.GetValue(block * kBlockFloats));
        }
        SetFlag<HardEvent::S_MTE2>(kEvent);
        WaitFlag<HardEvent::S_MTE2>(kEvent);
        return sum;
    }

    // In the second phase of post-softmax parts go to slots of their own, since other cores may still read the first.
    TOPTHETA_DEVICE inline void BeginSecondPhase() { storeFrom_ = 2 * tiling_->cores; }
    // Those parts are read from now on; each carries the total mass of the whole row.
    TOPTHETA_DEVICE inline void EndSecondPhase()
    {
        loadFrom_ = storeFrom_;
        totalIsKnown_ = true;
    }
    // Rows that the parts' lists hold together; valid after WaitForHeaders.
    TOPTHETA_DEVICE inline uint32_t ListRows()
    {
        uint32_t rows = 0;
        for (uint32_t part = 0; part < parts_; part++) {
            rows += HeaderInt(part, 0, kHeaderListRows);
        }
        return rows;
    }

private:
    TOPTHETA_DEVICE inline void CombineMasses(uint32_t head, uint32_t block)
    {
        LocalTensor<float> maxima = Values(0);
        LocalTensor<float> kept = Values(1);
        LocalTensor<float> total = Values(2);
        LocalTensor<float> factors = Values(3);
        PickLane(maxima, head, kHeaderMaximum);
        PickLane(kept, head, kHeaderKeptMass);
        PickLane(total, head, kHeaderTotalMass);
        PipeBarrier<PIPE_V>();
        AscendC::WholeReduceMax(ub_->PerHead(), maxima, static_cast<int32_t>(parts_), 1, 1, 1, 8,
                                AscendC::ReduceOrder::ORDER_ONLY_VALUE);
        LocalTensor<float> blocks = SpreadPerHead(*ub_);
        AscendC::Adds(ub_->State(kMaximum)[block * kBlockFloats], blocks, 0.0f, static_cast<int32_t>(kBlockFloats));
        AscendC::Sub(factors, maxima, blocks, parts_, 1, AscendC::BinaryRepeatParams(1, 1, 0, 8, 8, 0));
        PipeBarrier<PIPE_V>();
        AscendC::Exp(factors, factors, static_cast<int32_t>(parts_));
        PipeBarrier<PIPE_V>();
        AscendC::Mul(kept, kept, factors, static_cast<int32_t>(parts_));
        AscendC::Mul(total, total, factors, static_cast<int32_t>(parts_));
        AscendC::Brcb(FactorBlocks(), factors, static_cast<uint8_t>(CeilDiv(parts_, 8)),
                      AscendC::BrcbRepeatParams(1, 8));
        SumParts(ub_->State(kKeptMass)[block * kBlockFloats], kept, parts_);
        SumParts(ub_->State(kTotalMass)[block * kBlockFloats], total, totalIsKnown_ ? 1 : parts_);
    }

    enum HeaderLane : uint32_t {
        kHeaderMaximum,
        kHeaderKeptMass,
        kHeaderTotalMass,
        kHeaderKept,
        kHeaderBestRow,
        kHeaderBestListed,
        kHeaderListRows,
        kHeaderUnused
    };
    static constexpr uint32_t kMostParts = 64;
    static constexpr uint32_t kHeaderBytes = kMostParts * kMaxHeadBlock * kBlockBytes;

    // A core's first segment may end a unit that an earlier core began; its last may begin one.
    TOPTHETA_DEVICE inline uint64_t SlotOf(const Segment& segment, uint32_t core) const
    {
        return 2 * static_cast<uint64_t>(core) + (core == segment.firstCore ? 1 : 0);
    }

    TOPTHETA_DEVICE inline void WriteHeader(const LocalTensor<float>& header, uint32_t head, const HeadResult& result,
                                            uint32_t listRows)
    {
        const uint32_t block = head * kBlockFloats;
        LocalTensor<int32_t> integers = header.ReinterpretCast<int32_t>();
        header.SetValue(kHeaderMaximum, ub_->State(kMaximum).GetValue(block));
        header.SetValue(kHeaderKeptMass, ub_->State(kKeptMass).GetValue(block));
        header.SetValue(kHeaderTotalMass, ub_->State(kTotalMass).GetValue(block));
        integers.SetValue(kHeaderKept, static_cast<int32_t>(result.kept));
        integers.SetValue(kHeaderBestRow, result.bestRow);
        integers.SetValue(kHeaderBestListed, result.bestListed ? 1 : 0);
        integers.SetValue(kHeaderListRows, static_cast<int32_t>(listRows));
        integers.SetValue(kHeaderUnused, 0);
    }

    TOPTHETA_DEVICE inline void CopyOut(uint64_t offset, const LocalTensor<float>& from, uint32_t count)
    {
        AscendC::DataCopyPad(slots_[offset], from,
                             AscendC::DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(float)), 0, 0, 0));
    }

    // Parts [first, first + count): the first part of a unit lies in its core's second slot, the others in the first.
    TOPTHETA_DEVICE inline void LoadParts(const LocalTensor<float>& to, const Segment& segment, uint64_t offset,
                                          uint32_t first, uint32_t count, uint32_t floats)
    {
        const uint32_t bytes = floats * sizeof(float);
        const AscendC::DataCopyPadExtParams<float> noPad(false, 0, 0, 0);
        uint32_t done = 0;
        if (first == 0) {
            const uint64_t slot = (loadFrom_ + SlotOf(segment, segment.firstCore)) * slotFloats_;
            AscendC::DataCopyPad(to, slots_[slot + offset], AscendC::DataCopyExtParams(1, bytes, 0, 0, 0), noPad);
            done = 1;
        }
        if (done < count) {
            const uint64_t slot = (loadFrom_ + SlotOf(segment, segment.firstCore + first + done)) * slotFloats_;
            const uint32_t gap = 2 * slotFloats_ * sizeof(float) - bytes;
            AscendC::DataCopyPad(to[done * floats], slots_[slot + offset],
                                 AscendC::DataCopyExtParams(static_cast<uint16_t>(count - done), bytes, gap, 0, 0),
                                 noPad);
        }
    }

    TOPTHETA_DEVICE inline LocalTensor<float> Headers()
    {
        return ub_->At<float>(ub_->Layout().keyTiles, parts_ * heads_ * kBlockFloats);
    }
    TOPTHETA_DEVICE inline LocalTensor<float> Values(uint32_t index)
    {
        return ub_->Partials()[index * kMostParts];
    }
    TOPTHETA_DEVICE inline LocalTensor<float> FactorBlocks() { return ub_->Partials()[4 * kMostParts]; }

    TOPTHETA_DEVICE inline int32_t HeaderInt(uint32_t part, uint32_t head, HeaderLane lane)
    {
        const uint32_t index = (part * heads_ + head) * kBlockFloats + lane;
        return Headers().ReinterpretCast<int32_t>().GetValue(index);
    }

    // values[part] = one lane of the head's header in each part
    TOPTHETA_DEVICE inline void PickLane(const LocalTensor<float>& values, uint32_t head, HeaderLane lane)
    {
        const uint64_t mask[2] = {static_cast<uint64_t>(1) << lane, 0};
        AscendC::WholeReduceSum(values, Headers()[head * kBlockFloats], mask, static_cast<int32_t>(parts_), 1, 1,
                                static_cast<int32_t>(heads_));
    }

    TOPTHETA_DEVICE inline void SumParts(const LocalTensor<float>& sum, const LocalTensor<float>& values, uint32_t parts)
    {
        PipeBarrier<PIPE_V>();
        AscendC::WholeReduceSum(ub_->PerHead(), values, static_cast<int32_t>(parts), 1, 1, 1, 8);
        LocalTensor<float> blocks = SpreadPerHead(*ub_);
        AscendC::Adds(sum, blocks, 0.0f, static_cast<int32_t>(kBlockFloats));
    }

    // Room for the sums behind the headers, which take the first part of the ring of tiles.
    TOPTHETA_DEVICE inline LocalTensor<float> Sums()
    {
        const uint32_t bytes = ub_->Layout().partials - ub_->Layout().keyTiles - kHeaderBytes;
        return ub_->At<float>(ub_->Layout().keyTiles + kHeaderBytes, bytes / sizeof(float));
    }
    TOPTHETA_DEVICE inline uint32_t BatchFrom(uint32_t part)
    {
        return Least(Sums().GetSize() / tiling_->headDim, parts_ - part);
    }

    TOPTHETA_DEVICE inline void AddSums(uint32_t first, uint32_t count)
    {
        const uint32_t D = tiling_->headDim;
        LocalTensor<float> accumulator = ub_->Accumulator(0, D);
        LocalTensor<float> parts = Sums();
        const AscendC::BinaryRepeatParams strides(1, 1, 0, 8, 8, 0);
        for (uint32_t part = 0; part < count; part++) {
            LocalTensor<float> factor = FactorBlocks()[(first + part) * kBlockFloats];
            const uint32_t full = D / kLanes;
            PipeBarrier<PIPE_V>();
            if (full > 0) {
                AscendC::MulAddDst(accumulator, parts[part * D], factor, kLanes, static_cast<uint8_t>(full), strides);
            }
            if (D % kLanes > 0) {
                AscendC::MulAddDst(accumulator[full * kLanes], parts[part * D + full * kLanes], factor, D % kLanes, 1,
                                   strides);
            }
        }
    }

    // Kept elements of all parts; where there are none, the row of the largest score.
    TOPTHETA_DEVICE inline CombinedHead CombineCounts(uint32_t head)
    {
        CombinedHead combined = {0, -1, false};
        float best = kLowest;
        for (uint32_t part = 0; part < parts_; part++) {
            combined.kept += HeaderInt(part, head, kHeaderKept);
        }
        if (combined.kept > 0) {
            return combined;
        }
        for (uint32_t part = 0; part < parts_; part++) {
            const int32_t row = HeaderInt(part, head, kHeaderBestRow);
            const float score = Headers().GetValue((part * heads_ + head) * kBlockFloats);
            if (row >= 0 && (combined.bestRow < 0 || score > best)) {
                combined = {0, row, HeaderInt(part, head, kHeaderBestListed) != 0};
                best = score;
            }
        }
        return combined;
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    GlobalTensor<float> slots_;
    uint32_t slotFloats_ = 0;
    uint32_t storeFrom_ = 0;
    uint32_t loadFrom_ = 0;
    uint32_t parts_ = 0;
    uint32_t heads_ = 0;
    bool totalIsKnown_ = false;
};

}  // namespace toptheta
