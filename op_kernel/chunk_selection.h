// The threshold test of one chunk: which rows are kept.
//
// The scalar unit learns only counts and row numbers, once for each chunk.
#pragma once

#include "chunk.h"
#include "query_tokens.h"
#include "reductions.h"

namespace toptheta {

template <typename Types>
class ChunkSelection {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const VisibleKeys<Types::kTokens>* visible)
    {
        ub_ = ub;
        visible_ = visible;
    }

    // What stays in UB from the first segment to the last.
    TOPTHETA_DEVICE inline void Prepare()
    {
        AscendC::CreateVecIndex(ub_->RowNumbers().template ReinterpretCast<int16_t>(), static_cast<int16_t>(0),
                                ub_->Layout().chunkRows);
    }

    // Forgets what has been kept so far.
    TOPTHETA_DEVICE inline void Begin()
    {
        listRows_ = 0;
        allKept_ = false;
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            result_[head] = HeadResult();
        }
    }

    TOPTHETA_DEVICE inline void SetLimit(uint32_t head, float limit) { limit_[head] = limit; }
    TOPTHETA_DEVICE inline const HeadResult& Result(uint32_t head) const { return result_[head]; }
    TOPTHETA_DEVICE inline uint32_t ListRows() const { return listRows_; }
    // Brings Result().kept up to date at the end of a segment.
    TOPTHETA_DEVICE inline void Finish() { ReadCounts(); }

    // Compares and compacts; Count() gives the length of the list.
    TOPTHETA_DEVICE inline void MakeList(const Chunk& chunk)
    {
        const uint32_t lanes = LanesOf(*ub_, chunk);
        if (lanes < PitchOf(*ub_, chunk)) {
            // masks of all heads are read at once
            LocalTensor<uint16_t> masks = ub_->Mask(0, ub_->Heads()).template ReinterpretCast<uint16_t>();
            AscendC::Duplicate(masks, static_cast<uint16_t>(0), static_cast<int32_t>(masks.GetSize()));
        }
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            AscendC::CompareScalar(ub_->Mask(head), ScoresOf(*ub_, head, chunk), limit_[head], AscendC::CMPMODE::GT,
                                   lanes);
        }
        JoinMasks();
        PipeBarrier<PIPE_V>();
        // the scalar unit has read the list of the chunk before
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
        Compact(ub_->RowList(), ub_->AnyMask().template ReinterpretCast<uint16_t>(), AlignUp(chunk.rows, kLanes));
        SetFlag<HardEvent::V_S>(kEvent);
    }

    // Waits for the list. Nothing but a flag orders the count register, so it is read only after one.
    TOPTHETA_DEVICE inline uint32_t Count()
    {
        WaitFlag<HardEvent::V_S>(kEvent);
        return static_cast<uint32_t>(AscendC::GetGatherMaskRemainCount());
    }

    // Adds up what the heads keep, once the weights of the list are made. A single head keeps all of it.
    TOPTHETA_DEVICE inline void FinishChunk(const Chunk& chunk, const RowList& list)
    {
        listRows_ += list.kept;
        if (ub_->Heads() == 1) {
            result_[0].kept = listRows_;
        }
        TrackBest(chunk);
    }

private:
    static constexpr uint32_t kMaskBits = 16;
    static constexpr uint32_t kWorkList = 8 * 1024;  // bytes into `partials`, past the work row

    // The mask of what any head keeps: halves of the masks are joined until one is left.
    TOPTHETA_DEVICE inline void JoinMasks()
    {
        const uint32_t words = MaskBytes(ub_->Layout().chunkRows) / sizeof(uint16_t);
        LocalTensor<uint16_t> from = ub_->Mask(0, ub_->Heads()).template ReinterpretCast<uint16_t>();
        for (uint32_t left = ub_->Heads(); left > 1; left /= 2) {
            LocalTensor<uint16_t> any = ub_->Mask(ub_->Heads(), left / 2).template ReinterpretCast<uint16_t>();
            PipeBarrier<PIPE_V>();
            AscendC::Or(any, from, from[(left - left / 2) * words], static_cast<int32_t>(left / 2 * words));
            if (left % 2 > 0) {
                PipeBarrier<PIPE_V>();
                AscendC::Or(any, any, from[left / 2 * words], static_cast<int32_t>(words));
            }
            from = any;
        }
    }

    TOPTHETA_DEVICE inline LocalTensor<uint8_t> WorkMask()
    {
        return ub_->Mask(ub_->Heads() + JoinedMasks(ub_->Heads()));
    }

    // Numbers of the rows whose mask bit is set.
    TOPTHETA_DEVICE inline void Compact(const LocalTensor<uint16_t>& to, const LocalTensor<uint16_t>& mask,
                                        uint32_t rows)
    {
        uint64_t unused = 0;
        AscendC::GatherMask(to, ub_->RowNumbers(), mask, true, rows, AscendC::GatherMaskParams(1, 1, 8, 0), unused);
    }

    // Counts of several heads that share a list are known in UB only; the scalar unit reads them while it needs to.
    TOPTHETA_DEVICE inline void ReadCounts()
    {
        if (ub_->Heads() == 1) {
            return;
        }
        LocalTensor<int32_t> counts = ub_->ReduceFirst().template ReinterpretCast<int32_t>();
        PipeBarrier<PIPE_V>();
        AscendC::Cast(counts, ub_->State(kKeptCount), AscendC::RoundMode::CAST_RINT, ub_->StateCount());
        SetFlag<HardEvent::V_S>(kEvent);
        WaitFlag<HardEvent::V_S>(kEvent);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            result_[head].kept = static_cast<uint32_t>(counts.GetValue(head * kBlockFloats));
        }
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
    }

    // While a head has kept nothing, remembers its largest score: the row keeps that one if it stays so.
    TOPTHETA_DEVICE inline void TrackBest(const Chunk& chunk)
    {
        if (allKept_) {
            return;
        }
        ReadCounts();
        allKept_ = true;
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            if (result_[head].kept == 0 && (!Types::kTokens || visible_->Of(head) > 0)) {
                allKept_ = false;
                FindBest(head, chunk);
            }
        }
    }

    TOPTHETA_DEVICE inline void FindBest(uint32_t head, const Chunk& chunk)
    {
        const uint32_t padded = AlignUp(chunk.rows, kLanes);
        LocalTensor<float> work = ub_->Partials();
        SubtractBlock(work, ScoresOf(*ub_, head, chunk), ub_->State(kMaximum)[head * kBlockFloats], padded);
        PipeBarrier<PIPE_V>();
        AscendC::CompareScalar(WorkMask(), work, 0.0f, AscendC::CMPMODE::EQ, padded);
        const int32_t row = FirstOf(WorkMask(), padded);
        HeadResult& result = result_[head];
        const float score = ub_->State(kMaximum).GetValue(head * kBlockFloats);
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
        // where every score is -inf, lanes that hold none equal the maximum too
        const bool found = row >= 0 && static_cast<uint32_t>(row) < chunk.rows && score > kLowest;
        if (!found || (result.bestRow >= 0 && score <= result.bestScore)) {
            return;
        }
        result.bestRow = static_cast<int32_t>(chunk.begin) + row;
        result.bestScore = score;
        const LocalTensor<uint16_t> best = WorkMask().template ReinterpretCast<uint16_t>();
        AscendC::And(best, best, ub_->AnyMask().template ReinterpretCast<uint16_t>(),
                     static_cast<int32_t>(padded / kMaskBits));
        result.bestListed = FirstOf(WorkMask(), padded) == row;
    }

    // The lowest row whose mask bit is set, -1 if there is none.
    TOPTHETA_DEVICE inline int32_t FirstOf(const LocalTensor<uint8_t>& mask, uint32_t rows)
    {
        LocalTensor<uint16_t> found = ub_->Partials().template ReinterpretCast<uint16_t>()[kWorkList / 2];
        PipeBarrier<PIPE_V>();
        Compact(found, mask.template ReinterpretCast<uint16_t>(), rows);
        SetFlag<HardEvent::V_S>(kEvent);
        const int32_t row = Count() > 0 ? static_cast<int32_t>(found.GetValue(0)) : -1;
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
        return row;
    }

    UbMap* ub_ = nullptr;
    const VisibleKeys<Types::kTokens>* visible_ = nullptr;
    float limit_[kMaxHeadBlock] = {};
    HeadResult result_[kMaxHeadBlock];
    uint32_t listRows_ = 0;
    bool allKept_ = false;
};

}  // namespace toptheta
