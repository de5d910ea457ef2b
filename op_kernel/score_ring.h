// Scores from the cube core, as a vector core takes them out of its ring.
//
// The cube core works in rounds: it leaves the products of up to RoundRowsFor(D) K rows in the rings of both its
// vector cores and sets a flag for the two. Its wait for free places needs a flag of both, so each of them takes part
// in every round, also when it has no rows in it.
//
// Where the cube core copied several K rows as one, the scores of a round arrive in another order (FoldsKeys). They
// come to another place first, from which the vector unit gathers them. So do the products of int8 K rows, whose parts
// the vector unit joins (score_parts.h).
#pragma once

#include "score_parts.h"

namespace toptheta {

// Flags between the cores of a block: 0 for scores, 1 and more for free places of the rings. A place has a flag of its
// own, since one vector core may be ahead of the other: how a flag counts two sets of one core is not documented.
constexpr uint16_t kScoresReady = 0;
TOPTHETA_DEVICE inline uint16_t PlaceFree(uint32_t round) { return static_cast<uint16_t>(1 + round % kRingRounds); }

template <typename K>
class ScoreRing {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, GM_ADDR workspace, uint32_t core)
    {
        ub_ = ub;
        roundRows_ = RoundRowsFor(tiling->headDim, sizeof(K));
        folds_ = FoldsKeys(tiling->headDim, tiling->headBlock, tiling->key.row, sizeof(K));
        roundScores_ = RoundScores(tiling->headDim, tiling->headBlock, sizeof(K));
        const uint64_t ring = tiling->ringOffset + core * RingBytes(tiling->headDim, tiling->headBlock, sizeof(K));
        scores_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(workspace + ring));
    }

    // Rounds of the block in all: those of the vector core that has more of them.
    TOPTHETA_DEVICE inline void Expect(uint32_t rounds) { rounds_ = rounds; }

    // `follow`: the rows follow one another in the sequence, so that several may come as one.
    TOPTHETA_DEVICE inline void Begin(uint32_t begin, uint32_t end, bool follow = true)
    {
        row_ = begin;
        end_ = end;
        follow_ = follow;
    }

    TOPTHETA_DEVICE inline uint32_t RoundRows() const { return roundRows_; }
    TOPTHETA_DEVICE inline uint32_t Row() const { return row_; }
    TOPTHETA_DEVICE inline uint32_t RowsLeft() const { return end_ - row_; }

    // Chunks that begin from now on have a single round, or as many as there is room for.
    TOPTHETA_DEVICE inline void SetLongChunks(bool longChunks) { longChunks_ = longChunks; }

    // Rows of the chunk that begins next.
    TOPTHETA_DEVICE inline uint32_t NextRows() const
    {
        uint32_t rows = 0;
        for (uint32_t round = NextRounds(); round > 0; round--) {
            rows += NextRoundRows(RowsLeft() - rows, roundRows_);
        }
        return rows;
    }

    // Whether scores of the chunk that begins next come in the order of rows that were copied as one.
    TOPTHETA_DEVICE inline bool NextIsFolded() const { return folds_ && follow_ && FoldsRound(RowsLeft(), sizeof(K)); }

    // Whether they come to another place than that of the scores.
    TOPTHETA_DEVICE inline bool NextIsApart() const { return IsInt8<K>::kValue || NextIsFolded(); }

    // Begins a chunk of whole rounds, as many as fit, whose scores arrive from `scoreRow` on: V has read what lay
    // there.
    TOPTHETA_DEVICE inline void BeginChunk(uint32_t scoreRow)
    {
        scoreRow_ = scoreRow;
        chunkRows_ = 0;
        chunkRounds_ = NextRounds();
        foldedRows_ = 0;
        pitch_ = ub_->Layout().scoreRows;
        if (NextIsFolded()) {
            MakeOffsets();
            foldedRows_ = Least(chunkRounds_, RowsLeft() / kFoldedRows - 1) * kFoldedRows;
            pitch_ = ub_->Layout().chunkRows;
        }
        if (IsInt8<K>::kValue) {
            pitch_ = AlignUp(NextRows(), kBlockFloats);
        }
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
    }

    TOPTHETA_DEVICE inline bool RoundsLeft() const { return chunkRounds_ > 0; }

    // Waits until the cube core has the next round of the chunk and starts its copy.
    TOPTHETA_DEVICE inline void AskRound()
    {
        const uint32_t count = NextRoundRows(RowsLeft(), roundRows_);
        AscendC::CrossCoreWaitFlag(kScoresReady);
        CopyRound(scoreRow_ + chunkRows_, count);
        FreePlace();
        chunkRows_ += count;
        row_ += count;
        chunkRounds_--;
        if (chunkRounds_ == 0) {
            SetFlag<HardEvent::MTE2_V>(kValueEvent);
        }
    }

    // Waits for the copies of the chunk; returns its rows. Scores that came to another place move to `scoreRow`.
    // `byRow`: int8 K rows have scales of their own, which are there.
    TOPTHETA_DEVICE inline uint32_t TakeChunk(uint32_t scoreRow, bool byRow = false)
    {
        if (IsInt8<K>::kValue || foldedRows_ > 0) {
            ClearScores(*ub_, scoreRow, chunkRows_);
            PipeBarrier<PIPE_V>();
        }
        WaitFlag<HardEvent::MTE2_V>(kValueEvent);
        uint32_t from = scoreRow_;
        if constexpr (IsInt8<K>::kValue) {
            JoinParts(*ub_, Arrived(from, ProductRows(ub_->Heads(), sizeof(K)) * pitch_), pitch_, chunkRows_);
            from += ub_->Heads() * pitch_;
            PipeBarrier<PIPE_V>();
        }
        for (uint32_t head = 0; foldedRows_ > 0 && head < ub_->Heads(); head++) {
            MoveScores(ub_->Scores(head, scoreRow, AlignUp(chunkRows_, kBlockFloats)),
                       Arrived(from + head * pitch_, chunkRows_));
        }
        if constexpr (IsInt8<K>::kValue) {
            const bool moved = foldedRows_ > 0;
            const uint32_t pitch = moved ? ub_->Layout().scoreRows : pitch_;
            const uint32_t span = (ub_->Heads() - 1) * pitch + chunkRows_;
            PipeBarrier<PIPE_V>();
            ScaleSums(*ub_, Arrived(moved ? scoreRow : from, span), pitch, scoreRow, chunkRows_, byRow);
        }
        return chunkRows_;
    }

    // The rounds that only the other vector core has rows in.
    TOPTHETA_DEVICE inline void Finish()
    {
        while (round_ < rounds_) {
            AscendC::CrossCoreWaitFlag(kScoresReady);
            FreePlace();
        }
    }

private:
    static constexpr uint32_t kAsOne = RowsAsOne(sizeof(K));
    static constexpr uint32_t kFoldedRows = FoldedRows(sizeof(K));

    TOPTHETA_DEVICE inline uint32_t NextRounds() const
    {
        const uint32_t left = CeilDiv(RowsLeft(), roundRows_);
        return Least(longChunks_ ? ub_->Layout().chunkRows / roundRows_ : 1, left);
    }

    // Where the score of each row of a round lies, in bytes: the first time that one is wanted.
    TOPTHETA_DEVICE inline void MakeOffsets()
    {
        if (hasOffsets_) {
            return;
        }
        hasOffsets_ = true;
        const LocalTensor<int32_t> offsets = ub_->RowOffsets(kFoldedRows);
        constexpr int32_t step = sizeof(float) / kAsOne;
        AscendC::CreateVecIndex(offsets, 0, kFoldedRows);
        PipeBarrier<PIPE_V>();
        AscendC::Muls(offsets, offsets, step, static_cast<int32_t>(kFoldedRows));
        PipeBarrier<PIPE_V>();
        constexpr int32_t second = static_cast<int32_t>(kFoldedRows) * step - step;
        AddToSome(offsets, second, 0xaaaaaaaaaaaaaaaa);
        if constexpr (kAsOne == 4) {
            PipeBarrier<PIPE_V>();
            AddToSome(offsets, 2 * second, 0xcccccccccccccccc);
        }
    }

    // `lanes`: bits of 64 rows
    TOPTHETA_DEVICE inline void AddToSome(const LocalTensor<int32_t>& offsets, int32_t bytes, uint64_t lanes)
    {
        uint64_t mask[2] = {lanes, 0};
        AscendC::Adds(offsets, offsets, bytes, mask, static_cast<uint8_t>(kFoldedRows / kLanes),
                      AscendC::UnaryRepeatParams(1, 1, 8, 8));
    }

    // Scores of a head, round by round. The last round of the chunk may be one that came in its own order.
    TOPTHETA_DEVICE inline void MoveScores(const LocalTensor<float>& to, const LocalTensor<float>& from)
    {
        const auto offsets = ub_->RowOffsets(kFoldedRows).template ReinterpretCast<uint32_t>();
        for (uint32_t row = 0; row < foldedRows_; row += kFoldedRows) {
            AscendC::Gather(to[row], from[row], offsets, 0, kFoldedRows);
        }
        if (foldedRows_ < chunkRows_) {
            AscendC::Muls(to[foldedRows_], from[foldedRows_], 1.0f, static_cast<int32_t>(chunkRows_ - foldedRows_));
        }
    }

    // Scores as they arrive, from a row of the place on.
    TOPTHETA_DEVICE inline LocalTensor<float> Arrived(uint32_t row, uint32_t count)
    {
        return ub_->At<float>(ub_->Layout().scores + row * sizeof(float), count);
    }

    TOPTHETA_DEVICE inline void CopyRound(uint32_t scoreRow, uint32_t rows)
    {
        const uint32_t bytes = rows * sizeof(float);
        const uint32_t pitch = pitch_ * sizeof(float);
        const uint32_t lines = ProductRows(ub_->Heads(), sizeof(K));
        const AscendC::DataCopyExtParams copy(static_cast<uint16_t>(lines), bytes, (roundRows_ - rows) * sizeof(float),
                                              (pitch - AlignUp(bytes, kBlockBytes)) / kBlockBytes, 0);
        const uint32_t span = (lines - 1) * pitch_ + AlignUp(rows, kBlockFloats);
        AscendC::DataCopyPad(Arrived(scoreRow, span), scores_[round_ % kRingRounds * roundScores_], copy,
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
    bool folds_ = false;
    bool follow_ = true;
    bool longChunks_ = true;
    uint32_t rounds_ = 0;
    uint32_t round_ = 0;
    uint32_t row_ = 0;    // of the segment, to be asked for next
    uint32_t end_ = 0;
    bool hasOffsets_ = false;
    uint32_t foldedRows_ = 0;   // of the chunk, whose scores come in that order
    uint32_t scoreRow_ = 0;     // at which it arrives
    uint32_t pitch_ = 0;        // rows from the scores of a head to those of the next
    uint32_t chunkRows_ = 0;    // asked for so far
    uint32_t chunkRounds_ = 0;  // still to be asked for
};

}  // namespace toptheta
