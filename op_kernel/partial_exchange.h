// Units that are cut between cores: every core leaves its part in the workspace, and after SyncAll the cores of the
// unit combine the heads in turn.
#pragma once

#include "chunk.h"
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
    // `firstSlot`: of the cores that this one exchanges parts with.
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, GM_ADDR workspace, uint32_t firstSlot)
    {
        ub_ = ub;
        tiling_ = tiling;
        slotFloats_ = tiling->headBlock * (kHeadFloats + tiling->headDim);
        slots_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(workspace));
        storeFrom_ = firstSlot;
        loadFrom_ = firstSlot;
        SetFlag<HardEvent::MTE3_S>(kEvent);
    }

    TOPTHETA_DEVICE inline void Drain() { WaitFlag<HardEvent::MTE3_S>(kEvent); }

    // Leaves maximum, masses, counts and accumulators of this core's part.
    TOPTHETA_DEVICE inline void Store(const Segment& segment, uint32_t core, const HeadResult* results,
                                      uint32_t listRows)
    {
        const uint64_t slot = (storeFrom_ + SlotOf(segment, core)) * slotFloats_;
        WaitFlag<HardEvent::MTE3_S>(kEvent);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            WriteCounts(ub_->PartCounts()[head * kBlockFloats], results[head], listRows);
        }
        SetFlag<HardEvent::S_MTE3>(kEvent);
        WaitFlag<HardEvent::S_MTE3>(kEvent);
        CopyBlocks(slot, kPartCounts, ub_->PartCounts().ReinterpretCast<float>());
        SetFlag<HardEvent::MTE3_S>(kEvent);
        SetFlag<HardEvent::V_MTE3>(kEvent);
        WaitFlag<HardEvent::V_MTE3>(kEvent);
        CopyBlocks(slot, kPartMaximum, ub_->State(kMaximum));
        CopyBlocks(slot, kPartTotalMass, ub_->State(kTotalMass));
        CopyBlocks(slot, kPartKeptMass, ub_->State(kKeptMass));
        const uint32_t count = ub_->Heads() * tiling_->headDim;
        AscendC::DataCopyPad(slots_[slot + SumsAt(ub_->Heads())], ub_->At<float>(ub_->Layout().accumulator, count),
                             AscendC::DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(float)), 0, 0, 0));
    }

    // In the second phase of post-softmax parts go to slots of their own, since other cores may still read the first.
    TOPTHETA_DEVICE inline void BeginSecondPhase() { storeFrom_ = 2 * tiling_->cores; }
    // Those parts are read from now on; each carries the total mass of the whole row.
    TOPTHETA_DEVICE inline void EndSecondPhase()
    {
        loadFrom_ = storeFrom_;
        totalIsKnown_ = true;
    }

    // Starts the copies of maxima and total masses of all parts of a unit with `heads` heads.
    TOPTHETA_DEVICE inline void CopyMasses(const Segment& segment, uint32_t heads)
    {
        BeginCopies(segment, heads, 2);
        const uint32_t rowBytes = blocks_ * kBlockBytes;
        for (uint32_t part = 0; part < parts_; part++) {
            AscendC::DataCopyPad(Headers()[part * PartStride() * kBlockFloats], slots_[PartAt(segment, part)],
                                 AscendC::DataCopyExtParams(static_cast<uint16_t>(heads), rowBytes,
                                                            kHeadFloats * sizeof(float) - rowBytes, 0, 0),
                                 NoPad());
        }
        EndCopies();
    }

    // The masses of whole rows into the state of each head, for the log-sum-exp that post-softmax needs.
    TOPTHETA_DEVICE inline void CombineAllMasses()
    {
        WaitForHeaders();
        for (uint32_t head = 0; head < heads_; head++) {
            CombineMasses(head);
        }
    }

    // Starts the copies of one head of all parts of a unit with `heads` heads.
    TOPTHETA_DEVICE inline void CopyHead(const Segment& segment, uint32_t heads, uint32_t head)
    {
        BeginCopies(segment, 1, kPartBlocks);
        LoadParts(Headers(), segment, head * kHeadFloats, 0, parts_, kHeadFloats);
        EndCopies();
        sumsAt_ = SumsAt(heads) + head * tiling_->headDim;
        CopySums(segment, 0);
    }

    // Combines that head into the state and the accumulator of head 0.
    TOPTHETA_DEVICE inline CombinedHead Combine(const Segment& segment)
    {
        AscendC::Duplicate(ub_->Accumulator(0, tiling_->headDim), 0.0f, static_cast<int32_t>(tiling_->headDim));
        WaitForHeaders();
        CombineMasses(0);
        for (uint32_t part = 0; part < parts_; part += BatchFrom(part)) {
            if (part > 0) {
                CopySums(segment, part);
            }
            WaitFlag<HardEvent::MTE2_V>(kSumEvent);
            AddSums(part, BatchFrom(part));
        }
        return CombineCounts();
    }

    // Rows that the parts' lists hold together; valid after Combine.
    TOPTHETA_DEVICE inline uint32_t ListRows()
    {
        uint32_t rows = 0;
        for (uint32_t part = 0; part < parts_; part++) {
            rows += CountOf(part, kCountListRows);
        }
        return rows;
    }

private:
    // blocks of a head in a part, and what the last of them counts
    enum PartBlock : uint32_t { kPartMaximum, kPartTotalMass, kPartKeptMass, kPartCounts };
    enum PartCount : uint32_t { kCountKept, kCountBestRow, kCountBestListed, kCountListRows, kCounts };
    static constexpr uint32_t kHeadFloats = kPartBlocks * kBlockFloats;
    static constexpr uint32_t kMostParts = 64;
    // room for the headers of one head, or the masses of all heads, in front of the sums
    static constexpr uint32_t kHeaderBytes = kMostParts * kPartBlocks * kBlockBytes;

    // A core's first segment may end a unit that an earlier core began; its last may begin one.
    TOPTHETA_DEVICE inline uint64_t SlotOf(const Segment& segment, uint32_t core) const
    {
        return 2 * static_cast<uint64_t>(core) + (core == segment.firstCore ? 1 : 0);
    }
    TOPTHETA_DEVICE inline uint64_t PartAt(const Segment& segment, uint32_t part) const
    {
        return (loadFrom_ + SlotOf(segment, segment.firstCore + part)) * slotFloats_;
    }
    TOPTHETA_DEVICE inline uint32_t SumsAt(uint32_t heads) const { return heads * kHeadFloats; }

    TOPTHETA_DEVICE inline void WriteCounts(const LocalTensor<int32_t>& counts, const HeadResult& result,
                                            uint32_t listRows)
    {
        counts.SetValue(kCountKept, static_cast<int32_t>(result.kept));
        counts.SetValue(kCountBestRow, result.bestRow);
        counts.SetValue(kCountBestListed, result.bestListed ? 1 : 0);
        counts.SetValue(kCountListRows, static_cast<int32_t>(listRows));
        for (uint32_t unused = kCounts; unused < kBlockFloats; unused++) {
            counts.SetValue(unused, 0);
        }
    }

    // One block of each head to its place in the slot.
    TOPTHETA_DEVICE inline void CopyBlocks(uint64_t slot, PartBlock block, const LocalTensor<float>& from)
    {
        AscendC::DataCopyPad(slots_[slot + block * kBlockFloats], from,
                             AscendC::DataCopyExtParams(static_cast<uint16_t>(ub_->Heads()), kBlockBytes, 0,
                                                        kHeadFloats * sizeof(float) - kBlockBytes, 0));
    }

    static TOPTHETA_DEVICE inline AscendC::DataCopyPadExtParams<float> NoPad()
    {
        return AscendC::DataCopyPadExtParams<float>(false, 0, 0, 0);
    }

    TOPTHETA_DEVICE inline void BeginCopies(const Segment& segment, uint32_t heads, uint32_t blocks)
    {
        parts_ = segment.lastCore - segment.firstCore + 1;
        heads_ = heads;
        blocks_ = blocks;
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        SetFlag<HardEvent::S_MTE2>(kEvent);
        WaitFlag<HardEvent::S_MTE2>(kEvent);
    }

    TOPTHETA_DEVICE inline void EndCopies()
    {
        SetFlag<HardEvent::MTE2_V>(kHeaderEvent);
        SetFlag<HardEvent::MTE2_S>(kHeaderCountEvent);
    }

    TOPTHETA_DEVICE inline void WaitForHeaders()
    {
        WaitFlag<HardEvent::MTE2_V>(kHeaderEvent);
        WaitFlag<HardEvent::MTE2_S>(kHeaderCountEvent);
    }

    // Parts [first, first + count): the first part of a unit lies in its core's second slot, the others in the first.
    TOPTHETA_DEVICE inline void LoadParts(const LocalTensor<float>& to, const Segment& segment, uint64_t offset,
                                          uint32_t first, uint32_t count, uint32_t floats)
    {
        const uint32_t bytes = floats * sizeof(float);
        uint32_t done = 0;
        if (first == 0) {
            AscendC::DataCopyPad(to, slots_[PartAt(segment, 0) + offset], AscendC::DataCopyExtParams(1, bytes, 0, 0, 0),
                                 NoPad());
            done = 1;
        }
        if (done < count) {
            const uint32_t gap = 2 * slotFloats_ * sizeof(float) - bytes;
            AscendC::DataCopyPad(to[done * floats], slots_[PartAt(segment, first + done) + offset],
                                 AscendC::DataCopyExtParams(static_cast<uint16_t>(count - done), bytes, gap, 0, 0),
                                 NoPad());
        }
    }

    // Starts the copies of the sums of the parts from `first` on, as many as there is room for.
    TOPTHETA_DEVICE inline void CopySums(const Segment& segment, uint32_t first)
    {
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        LoadParts(Sums(), segment, sumsAt_, first, BatchFrom(first), tiling_->headDim);
        SetFlag<HardEvent::MTE2_V>(kSumEvent);
    }

    // [part][head][block] in the ring of tiles
    TOPTHETA_DEVICE inline LocalTensor<float> Headers()
    {
        return ub_->At<float>(ub_->Layout().keyTiles, parts_ * PartStride() * kBlockFloats);
    }
    TOPTHETA_DEVICE inline uint32_t PartStride() const { return heads_ * blocks_; }
    TOPTHETA_DEVICE inline LocalTensor<float> Sums()
    {
        const uint32_t bytes = ub_->Layout().partials - ub_->Layout().keyTiles - kHeaderBytes;
        return ub_->At<float>(ub_->Layout().keyTiles + kHeaderBytes, bytes / sizeof(float));
    }
    TOPTHETA_DEVICE inline uint32_t BatchFrom(uint32_t part)
    {
        return Least(Sums().GetSize() / tiling_->headDim, parts_ - part);
    }
    // one block for each part, in the work space of a chunk
    TOPTHETA_DEVICE inline LocalTensor<float> Work(uint32_t index)
    {
        return ub_->Partials()[index * kMostParts * kBlockFloats];
    }
    TOPTHETA_DEVICE inline LocalTensor<float> Factors() { return Work(0); }

    // Maximum, total and kept mass of the row, and the factor exp(maximum of the part - maximum) of each part.
    TOPTHETA_DEVICE inline void CombineMasses(uint32_t head)
    {
        const LocalTensor<float> first = Headers()[head * blocks_ * kBlockFloats];
        LocalTensor<float> maximum = ub_->State(kMaximum)[head * kBlockFloats];
        LocalTensor<float> total = ub_->State(kTotalMass)[head * kBlockFloats];
        const int32_t count = parts_ * kBlockFloats;
        OverParts(Work(1), first[kPartMaximum * kBlockFloats], Operation::kCopy);
        FoldMaximum(maximum);
        OverParts(Factors(), first[kPartMaximum * kBlockFloats], Operation::kSubtract, maximum);
        PipeBarrier<PIPE_V>();
        AscendC::Exp(Factors(), Factors(), count);
        PipeBarrier<PIPE_V>();
        if (totalIsKnown_) {
            AscendC::Adds(total, first[kPartTotalMass * kBlockFloats], 0.0f, static_cast<int32_t>(kBlockFloats));
        } else {
            OverParts(Work(1), first[kPartTotalMass * kBlockFloats], Operation::kMultiply, Factors());
            FoldSum(total, Work(1));
        }
        if (blocks_ == kPartBlocks) {
            OverParts(Work(2), first[kPartKeptMass * kBlockFloats], Operation::kMultiply, Factors());
            FoldSum(ub_->State(kKeptMass)[head * kBlockFloats], Work(2));
        }
    }

    enum class Operation { kCopy, kSubtract, kMultiply };

    // to[part] = operation on one block of each part's header; eight parts with each repeat.
    TOPTHETA_DEVICE inline void OverParts(const LocalTensor<float>& to, const LocalTensor<float>& blocks,
                                          Operation operation, const LocalTensor<float>& other = LocalTensor<float>())
    {
        const uint32_t full = parts_ / 8;
        if (full > 0) {
            Apply(to, blocks, operation, other, kLanes, static_cast<uint8_t>(full));
        }
        if (parts_ % 8 > 0) {
            const bool each = operation == Operation::kMultiply;
            Apply(to[full * kLanes], blocks[full * 8 * PartStride() * kBlockFloats], operation,
                  each ? other[full * kLanes] : other, parts_ % 8 * kBlockFloats, 1);
        }
    }

    TOPTHETA_DEVICE inline void Apply(const LocalTensor<float>& to, const LocalTensor<float>& blocks,
                                      Operation operation, const LocalTensor<float>& other, uint64_t lanes,
                                      uint8_t repeats)
    {
        const uint8_t stride = static_cast<uint8_t>(PartStride());
        const uint8_t repeatStride = static_cast<uint8_t>(8 * PartStride());
        if (operation == Operation::kCopy) {
            AscendC::Adds(to, blocks, 0.0f, lanes, repeats, AscendC::UnaryRepeatParams(1, stride, 8, repeatStride));
        } else if (operation == Operation::kSubtract) {
            AscendC::Sub(to, blocks, other, lanes, repeats,
                         AscendC::BinaryRepeatParams(1, stride, 0, 8, repeatStride, 0));
        } else {
            AscendC::Mul(to, blocks, other, lanes, repeats,
                         AscendC::BinaryRepeatParams(1, stride, 1, 8, repeatStride, 8));
        }
    }

    // to = maximum over the parts' blocks in Work(1)
    TOPTHETA_DEVICE inline void FoldMaximum(const LocalTensor<float>& to)
    {
        LocalTensor<float> work = Work(1);
        for (uint32_t left = parts_; left > 1;) {
            const uint32_t kept = (left + 1) / 2;
            PipeBarrier<PIPE_V>();
            AscendC::Max(kept == 1 ? to : work, work, work[kept * kBlockFloats],
                         static_cast<int32_t>((left - kept) * kBlockFloats));
            left = kept;
        }
        PipeBarrier<PIPE_V>();
    }

    // to = sum over the parts' blocks
    TOPTHETA_DEVICE inline void FoldSum(const LocalTensor<float>& to, const LocalTensor<float>& work)
    {
        for (uint32_t left = parts_; left > 1;) {
            const uint32_t kept = (left + 1) / 2;
            PipeBarrier<PIPE_V>();
            AscendC::Add(kept == 1 ? to : work, work, work[kept * kBlockFloats],
                         static_cast<int32_t>((left - kept) * kBlockFloats));
            left = kept;
        }
    }

    TOPTHETA_DEVICE inline void AddSums(uint32_t first, uint32_t count)
    {
        const uint32_t D = tiling_->headDim;
        LocalTensor<float> accumulator = ub_->Accumulator(0, D);
        LocalTensor<float> sums = Sums();
        const AscendC::BinaryRepeatParams strides(1, 1, 0, 8, 8, 0);
        const uint32_t full = D / kLanes;
        for (uint32_t part = 0; part < count; part++) {
            LocalTensor<float> factor = Factors()[(first + part) * kBlockFloats];
            PipeBarrier<PIPE_V>();
            if (full > 0) {
                AscendC::MulAddDst(accumulator, sums[part * D], factor, kLanes, static_cast<uint8_t>(full), strides);
            }
            if (D % kLanes > 0) {
                AscendC::MulAddDst(accumulator[full * kLanes], sums[part * D + full * kLanes], factor, D % kLanes, 1,
                                   strides);
            }
        }
    }

    TOPTHETA_DEVICE inline int32_t CountOf(uint32_t part, PartCount count)
    {
        const uint32_t index = (part * kPartBlocks + kPartCounts) * kBlockFloats + count;
        return Headers().ReinterpretCast<int32_t>().GetValue(index);
    }

    // Kept elements of all parts; where there are none, the row of the largest score.
    TOPTHETA_DEVICE inline CombinedHead CombineCounts()
    {
        CombinedHead combined = {0, -1, false};
        float best = kLowest;
        for (uint32_t part = 0; part < parts_; part++) {
            combined.kept += CountOf(part, kCountKept);
        }
        if (combined.kept > 0) {
            return combined;
        }
        for (uint32_t part = 0; part < parts_; part++) {
            const int32_t row = CountOf(part, kCountBestRow);
            const float score = Headers().GetValue(part * kHeadFloats);
            if (row >= 0 && (combined.bestRow < 0 || score > best)) {
                combined = {0, row, CountOf(part, kCountBestListed) != 0};
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
    uint32_t heads_ = 0;   // in the headers
    uint32_t blocks_ = 0;  // of each of them
    uint32_t sumsAt_ = 0;
    bool totalIsKnown_ = false;
};

}  // namespace toptheta
