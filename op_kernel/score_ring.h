// Scores from the cube core, as a vector core takes them out of its ring.
//
// The cube core works in rounds: it leaves the products of up to RoundRowsFor(D) K rows in the rings of both its
// vector cores and sets a flag for the two. Its wait for free places needs a flag of both, so each of them takes part in
// every round, also when it has no rows in it.
#pragma once

#include "cube_layout.h"
#include "kernel_common.h"

namespace toptheta {

// Flags between the cores of a block: 0 for scores, 1 and more for free places of the rings. A place has a flag of its own,
// since one vector core may be ahead of the other: how a flag counts that one of them sets twice is not documented.
constexpr uint16_t kScoresReady = 0;
TOPTHETA_DEVICE inline uint16_t PlaceFree(uint32_t round) { return static_cast<uint16_t>(1 + round % kRingRounds); }

TOPTHETA_DEVICE inline uint32_t RoundsOf(const Segment& segment, uint32_t roundRows)
{
    return CeilDiv(segment.rowEnd - segment.rowBegin, roundRows);
}

class ScoreRing {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, GM_ADDR workspace, uint32_t core)
    {
        ub_ = ub;
        roundRows_ = RoundRowsFor(tiling->headDim);
        roundScores_ = RoundScores(tiling->headDim, tiling->headBlock);
        scores_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(
            workspace + tiling->ringOffset + core * RingBytes(tiling->headDim, tiling->headBlock)));
    }

    // Rounds of the block in all: those of the vector core that has more of them.
    TOPTHETA_DEVICE inline void Expect(uint32_t rounds) { rounds_ = rounds; }

    TOPTHETA_DEVICE inline void Begin(uint32_t begin, uint32_t end)
    {
        row_ = begin;
        end_ = end;
    }

    TOPTHETA_DEVICE inline uint32_t Row() const { return row_; }
    TOPTHETA_DEVICE inline uint32_t RowsLeft() const { return end_ - row_; }

    // Starts the copies of a chunk, whose scores lie from `scoreRow` on; returns its rows.
    TOPTHETA_DEVICE inline uint32_t Ask(uint32_t scoreRow)
    {
        uint32_t rows = 0;
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        for (uint32_t rounds = ChunkRounds(); rounds > 0; rounds--) {
            const uint32_t count = Least(roundRows_, RowsLeft());
            AscendC::CrossCoreWaitFlag(kScoresReady);
            CopyRound(scoreRow + rows, count);
            FreePlace();
            rows += count;
            row_ += count;
        }
        SetFlag<HardEvent::MTE2_V>(kValueEvent);
        return rows;
    }

    TOPTHETA_DEVICE inline void Wait() { WaitFlag<HardEvent::MTE2_V>(kValueEvent); }

    // The rounds that only the other vector core has rows in.
    TOPTHETA_DEVICE inline void Finish()
    {
        while (round_ < rounds_) {
            AscendC::CrossCoreWaitFlag(kScoresReady);
            FreePlace();
        }
    }

private:
    // Whole rounds, as many as fit.
    TOPTHETA_DEVICE inline uint32_t ChunkRounds() const
    {
        return Least(CeilDiv(RowsLeft(), roundRows_), ub_->Layout().chunkRows / roundRows_);
    }

    TOPTHETA_DEVICE inline void CopyRound(uint32_t scoreRow, uint32_t rows)
    {
        const uint32_t bytes = rows * sizeof(float);
        const uint32_t pitch = ub_->Layout().scoreRows * sizeof(float);
        const AscendC::DataCopyExtParams copy(static_cast<uint16_t>(ub_->Heads()), bytes,
                                              (roundRows_ - rows) * sizeof(float),
                                              (pitch - AlignUp(bytes, kBlockBytes)) / kBlockBytes, 0);
        LocalTensor<float> to = ub_->At<float>(ub_->Layout().scores + scoreRow * sizeof(float),
                                               (ub_->Heads() - 1) * ub_->Layout().scoreRows + AlignUp(rows, kBlockFloats));
        AscendC::DataCopyPad(to, scores_[round_ % kRingRounds * roundScores_], copy,
                             AscendC::DataCopyPadExtParams<float>(false, 0, 0, 0));
    }

    TOPTHETA_DEVICE inline void FreePlace()
    {
        AscendC::CrossCoreSetFlag<2, PIPE_MTE2>(PlaceFree(round_));
        round_++;
    }

    UbMap* ub_ = nullptr;
    GlobalTensor<float> scores_;
    uint32_t roundRows_ = 0;
    uint32_t roundScores_ = 0;
    uint32_t rounds_ = 0;
    uint32_t round_ = 0;
    uint32_t row_ = 0;    // of the segment, to be asked for next
    uint32_t end_ = 0;
};

}  // namespace toptheta
