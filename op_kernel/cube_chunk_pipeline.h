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

    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, GM_ADDR workspace, uint32_t core,
                                     CacheRows<T>* values)
    {
        this->InitValues(ub, tiling, nullptr, values);
        ring_.Init(ub, tiling, workspace, core);
    }

    TOPTHETA_DEVICE inline ScoreRing& Ring() { return ring_; }

    TOPTHETA_DEVICE inline void Drain() { this->DrainValues(); }

    TOPTHETA_DEVICE inline void Start(const Segment& segment, uint32_t)
    {
        ring_.Begin(segment.rowBegin, segment.rowEnd);
        stream_.Begin(0, 0);
    }

    // The whole of a segment in one pass. While the V rows of a chunk are added, the scores of the next one arrive.
    template <typename Next>
    TOPTHETA_DEVICE inline void StreamAndSelect(Next& next)
    {
        Chunk asked = Ask(0);
        for (bool more = true; more;) {
            const Chunk chunk = asked;
            Take(chunk);
            selection_.MakeList(chunk);
            selection_.UpdateMaximum(chunk);
            selection_.RescaleAccumulators();
            const RowList list = this->MakeRowList(chunk);
            stream_.BeginValues(list);
            stream_.Fill();
            selection_.AddChunk(chunk, list, this->NeedsTotal());
            more = ring_.RowsLeft() > 0;
            if (more) {
                asked = Ask(0);
            }
            this->AddRemainingValues();
        }
        selection_.Finish();
        next.StartNext();
    }

    // First phase of post-softmax: scores, maximum and total mass.
    TOPTHETA_DEVICE inline void StreamScores(ScoreStore& store)
    {
        while (ring_.RowsLeft() > 0) {
            const Chunk chunk = Ask(store.BeginChunk(ring_.Row()));
            Take(chunk);
            selection_.UpdateMaximum(chunk);
            selection_.AddTotal(chunk);
            store.Store(chunk);
        }
    }

private:
    TOPTHETA_DEVICE inline Chunk Ask(uint32_t scoreRow)
    {
        const uint32_t begin = ring_.Row();
        return {begin, ring_.Ask(scoreRow), scoreRow};
    }

    TOPTHETA_DEVICE inline void Take(const Chunk& chunk)
    {
        ring_.Wait();
        selection_.ScaleScores(chunk);
    }

    using ValuePipeline<T>::selection_;
    using ValuePipeline<T>::stream_;
    ScoreRing ring_;
};

}  // namespace toptheta
