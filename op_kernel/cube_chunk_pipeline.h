// The chunks of a segment where the cube core multiplies the K rows: the scores come through a ring in global memory,
// and the ring of tiles in the Unified Buffer holds V rows alone.
#pragma once

#include "score_ring.h"
#include "value_pipeline.h"

namespace toptheta {

template <typename T>
class CubeChunkPipeline : public ValuePipeline<T> {
public:
    static constexpr bool kMultipliesKeys = false;

    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, const KernelTensors&, GM_ADDR workspace,
                                     CacheRows<T>* values)
    {
        this->InitValues(ub, tiling, nullptr, values);
        core_ = static_cast<uint32_t>(AscendC::GetBlockIdx());
        ring_.Init(ub, tiling, workspace, core_);
    }

    // Both vector cores of a block take part in as many rounds as the one that has more of them.
    TOPTHETA_DEVICE inline void BeginWork(const WorkTotal& total, SequenceLengths& lengths)
    {
        ring_.Expect(Most(CountRounds(total, lengths, core_), CountRounds(total, lengths, core_ ^ 1)));
    }

    TOPTHETA_DEVICE inline void EndWork() { ring_.Finish(); }

    TOPTHETA_DEVICE inline void Drain() { this->DrainValues(); }

    TOPTHETA_DEVICE inline void Start(const Segment& segment, uint32_t)
    {
        ring_.Begin(segment.rowBegin, segment.rowEnd);
        stream_.Begin(0, 0);
    }

    // The whole of a segment in one pass. Rounds of the next chunk are asked for while V rows of this one are added.
    template <typename Next>
    TOPTHETA_DEVICE inline void StreamAndSelect(Next& next)
    {
        uint32_t row = ring_.Row();
        ring_.BeginChunk(0);
        AskRounds();
        for (bool more = true; more;) {
            const Chunk chunk = TakeChunk(row, 0);
            selection_.MakeList(chunk);
            selection_.UpdateMaximum(chunk);
            selection_.RescaleAccumulators();
            const RowList list = this->MakeRowList(chunk);
            stream_.BeginValues(list);
            stream_.Fill();
            selection_.AddChunk(chunk, list, this->NeedsTotal());
            more = ring_.RowsLeft() > 0;
            row = ring_.Row();
            if (more) {
                ring_.BeginChunk(0);
            }
            AddValuesAndAskRounds();
        }
        selection_.Finish();
        next.StartNext();
    }

    // First phase of post-softmax: scores, maximum and total mass.
    TOPTHETA_DEVICE inline void StreamScores(ScoreStore& store)
    {
        while (ring_.RowsLeft() > 0) {
            const uint32_t row = ring_.Row();
            const uint32_t scoreRow = store.BeginChunk(row);
            ring_.BeginChunk(scoreRow);
            AskRounds();
            const Chunk chunk = TakeChunk(row, scoreRow);
            selection_.UpdateMaximum(chunk);
            selection_.AddTotal(chunk);
            store.Store(chunk);
        }
    }

private:
    TOPTHETA_DEVICE inline uint32_t CountRounds(const WorkTotal& total, SequenceLengths& lengths, uint32_t core)
    {
        SegmentIterator<SequenceLengths> segments = lengths.SegmentsOf(total, core);
        Segment segment;
        uint32_t rounds = 0;
        while (segments.Next(segment)) {
            rounds += CeilDiv(segment.rowEnd - segment.rowBegin, ring_.RoundRows());
        }
        return rounds;
    }

    TOPTHETA_DEVICE inline void AskRounds()
    {
        while (ring_.RoundsLeft()) {
            ring_.AskRound();
        }
    }

    // With few heads the cube core is behind, and a tile fills the wait; with many it is ahead, and the tiles hide the
    // copies of the rounds.
    TOPTHETA_DEVICE inline void AddValuesAndAskRounds()
    {
        if (stream_.ValuesLeft() && ub_->Heads() <= kFewHeads) {
            stream_.Fill();
            this->AddValueTile();
        }
        AskRounds();
        this->AddRemainingValues();
    }

    TOPTHETA_DEVICE inline Chunk TakeChunk(uint32_t row, uint32_t scoreRow)
    {
        const Chunk chunk = {row, ring_.TakeChunk(), scoreRow};
        selection_.ScaleScores(chunk);
        return chunk;
    }

    static constexpr uint32_t kFewHeads = 4;

    using ValuePipeline<T>::ub_;
    using ValuePipeline<T>::selection_;
    using ValuePipeline<T>::stream_;
    ScoreRing ring_;
    uint32_t core_ = 0;
};

}  // namespace toptheta
