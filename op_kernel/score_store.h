// Scores of a segment between the two phases of post-softmax: in UB while they fit, else in the workspace.
#pragma once

#include "chunk.h"
#include "query_tokens.h"
#include "reductions.h"
#include "unit_parameters.h"

namespace toptheta {

class ScoreStore {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, GM_ADDR workspace)
    {
        ub_ = ub;
        tiling_ = tiling;
        stores_ = tiling->placement == kPostSoftmax;
        scores_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(workspace + tiling->scoresOffset));
        SetFlag<HardEvent::MTE3_V>(kStoreEvent);
    }

    TOPTHETA_DEVICE inline void Drain() { WaitFlag<HardEvent::MTE3_V>(kStoreEvent); }

    // `cut`: other segments come between the two phases, so UB can not hold the scores.
    TOPTHETA_DEVICE inline void Begin(const Segment& segment, const HeadRange& range, bool cut)
    {
        rowBegin_ = segment.rowBegin;
        rowEnd_ = segment.rowEnd;
        firstRow_ = FirstRow(*tiling_, range);
        inUb_ = !cut && ScoresStayInUb(segment.rowEnd - segment.rowBegin, ub_->Layout());
    }

    // Where the scores of the chunk that begins at `row` go in UB.
    TOPTHETA_DEVICE inline uint32_t BeginChunk(uint32_t row)
    {
        if (!stores_) {
            return 0;
        }
        if (inUb_) {
            return row - rowBegin_;
        }
        WaitFlag<HardEvent::MTE3_V>(kStoreEvent);
        return 0;
    }

    TOPTHETA_DEVICE inline void Store(const Chunk& chunk)
    {
        if (inUb_ || !stores_) {
            return;
        }
        SetFlag<HardEvent::V_MTE3>(kStoreEvent);
        WaitFlag<HardEvent::V_MTE3>(kStoreEvent);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            AscendC::DataCopyPad(scores_[OffsetOf(head, chunk.begin)], ub_->Scores(head, 0, AlignUp(chunk.rows, 8)),
                                 AscendC::DataCopyExtParams(1, chunk.rows * sizeof(float), 0, 0, 0));
        }
        SetFlag<HardEvent::MTE3_V>(kStoreEvent);
    }

    // Before the core reads its own scores back: to where they were made, and V may clear that place first. So V waits
    // for the copies, and the loads for V.
    TOPTHETA_DEVICE inline void FinishStoring()
    {
        WaitFlag<HardEvent::MTE3_V>(kStoreEvent);
        SetFlag<HardEvent::MTE3_V>(kStoreEvent);
    }

    TOPTHETA_DEVICE inline Chunk Load(uint32_t row, uint32_t rows)
    {
        const Chunk chunk = {row, rows, inUb_ ? row - rowBegin_ : 0};
        if (!inUb_) {
            ClearScores(*ub_, 0, rows);
            SetFlag<HardEvent::V_MTE2>(kParameterEvent);
            WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                AscendC::DataCopyPad(ub_->Scores(head, 0, AlignUp(rows, 8)), scores_[OffsetOf(head, row)],
                                     AscendC::DataCopyExtParams(1, rows * sizeof(float), 0, 0, 0),
                                     AscendC::DataCopyPadExtParams<float>(false, 0, 0, 0));
            }
            SetFlag<HardEvent::MTE2_V>(kParameterEvent);
            WaitFlag<HardEvent::MTE2_V>(kParameterEvent);
        }
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            FillTails(ub_->Scores(head, chunk.scoreRow, AlignUp(rows, kLanes)), 1, kLanes, rows, kLowest);
        }
        return chunk;
    }

private:
    static constexpr int32_t kStoreEvent = 1;

    TOPTHETA_DEVICE inline uint64_t OffsetOf(uint32_t head, uint32_t row) const
    {
        return (firstRow_ + head) * tiling_->capacity + row;
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    GlobalTensor<float> scores_;
    uint64_t firstRow_ = 0;
    uint32_t rowBegin_ = 0;
    uint32_t rowEnd_ = 0;
    bool inUb_ = false;
    bool stores_ = false;  // scores of a sample are wanted once
};

}  // namespace toptheta
