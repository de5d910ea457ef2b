// The chunks of a segment: scores, threshold test, V rows.
//
// While the K tiles of a chunk are multiplied, the V rows that the chunk before it keeps are fetched and added.
#pragma once

#include "query_key_product.h"
#include "row_stream.h"
#include "score_store.h"
#include "value_gather.h"

namespace toptheta {

template <typename T>
class ChunkPipeline {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, CacheRows<T>* keys, CacheRows<T>* values)
    {
        ub_ = ub;
        tiling_ = tiling;
        product_.Init(ub, tiling->headDim);
        selection_.Init(ub, tiling);
        weightedSum_.Init(ub, tiling->headDim);
        stream_.Init(ub, tiling->headDim, keys, values);
        gather_.Init(ub, tiling->headDim, values, &weightedSum_);
        gather_.SetRoom(ub->template ValueRows<T>(tiling->headDim), kValueEvent);
        SetFlag<HardEvent::V_MTE2>(kValueEvent);
        lastGather_.Init(ub, tiling->headDim, values, &weightedSum_);
    }

    TOPTHETA_DEVICE inline void Drain()
    {
        stream_.Drain();
        WaitFlag<HardEvent::V_MTE2>(kValueEvent);
    }

    // Asks for the first K tiles of rows [begin, end).
    TOPTHETA_DEVICE inline void Start(uint32_t begin, uint32_t end)
    {
        stream_.Begin(begin, end);
        PlanChunk();
        stream_.Fill();
    }

    // The whole of a segment in one pass. `next.StartNext()` is called when the ring has room for the next segment.
    template <typename Next>
    TOPTHETA_DEVICE inline void StreamAndSelect(Next& next)
    {
        Chunk chunk = ScoreChunk(0);
        while (stream_.KeysLeft() > 0) {
            AddRemainingValues();
            SelectNext(chunk);
            chunk = ScoreChunk(0);
        }
        AddRemainingValues();
        SelectLast(chunk, next);
        selection_.Finish();
    }

    // First phase of post-softmax: scores, maximum and total mass.
    TOPTHETA_DEVICE inline void StreamScores(ScoreStore& store)
    {
        while (stream_.KeysLeft() > 0) {
            const uint32_t row = stream_.FirstRow(stream_.KeysTaken());
            const Chunk chunk = ScoreChunk(store.BeginChunk(row));
            PlanChunk();
            stream_.Fill();
            selection_.UpdateMaximum(chunk);
            selection_.AddTotal(chunk);
            store.Store(chunk);
        }
    }

    // Second phase: the threshold is known, the scores are read again.
    TOPTHETA_DEVICE inline void SelectStored(const Segment& segment, ScoreStore& store)
    {
        for (uint32_t row = segment.rowBegin; row < segment.rowEnd; row += ub_->Layout().chunkRows) {
            const Chunk chunk = store.Load(row, Least(ub_->Layout().chunkRows, segment.rowEnd - row));
            selection_.MakeList(chunk);
            const RowList list = MakeRowList(chunk);
            stream_.BeginValues(list);
            stream_.Fill();
            selection_.AddChunk(chunk, list, false);
            AddRemainingValues();
        }
        selection_.Finish();
    }

    // Adds one V row with weight 1 for one head.
    TOPTHETA_DEVICE inline void AddSingleRow(uint32_t head, uint32_t row) { gather_.AddSingleRow(head, row); }

    TOPTHETA_DEVICE inline ChunkSelection<T>& Selection() { return selection_; }

private:
    // K tiles of a chunk when `left` remain. Chunks are of one size but for the last, which is short: less is left to
    // do after its last K row.
    TOPTHETA_DEVICE inline uint32_t ChunkTiles(uint32_t left) const
    {
        const uint32_t most = ub_->Layout().chunkRows / ub_->Layout().tileRows;
        const uint32_t tail = stream_.TailTiles();
        if (left <= most && (left <= tail || left * ub_->Layout().tileRows <= kShortRows)) {
            return left;
        }
        const uint32_t body = left > tail ? left - tail : left;
        return CeilDiv(body, CeilDiv(body, most));
    }

    TOPTHETA_DEVICE inline void PlanChunk()
    {
        chunkTiles_ = ChunkTiles(stream_.KeysLeft());
        stream_.SetChunks(chunkTiles_, ChunkTiles(stream_.KeysLeft() - chunkTiles_));
    }

    // Scores of the next chunk, with the V rows of the chunk before it fetched and added on the way. The tiles that
    // replace those of the last step are asked for behind the test of the chunk, when it is known how many V rows come.
    TOPTHETA_DEVICE inline Chunk ScoreChunk(uint32_t scoreRow)
    {
        uint32_t tiles = chunkTiles_;
        Chunk chunk = {stream_.FirstRow(stream_.KeysTaken()), 0, scoreRow};
        while (tiles > 0) {
            if (stream_.NextIsValues()) {
                AddValueTile();
                stream_.Fill();
                continue;
            }
            const uint32_t step = stream_.StepTiles(tiles);
            const uint32_t rows = stream_.RowsOf(stream_.KeysTaken(), step);
            product_.Compute(stream_, step, scoreRow + chunk.rows, rows);
            chunk.rows += rows;
            tiles -= step;
            if (stream_.KeysLeft() > 0) {
                gather_.Advance(stream_.Issued(), stream_.Taken());
            }
            if (tiles > 0) {
                stream_.Fill();
            }
        }
        selection_.ScaleScores(chunk);
        return chunk;
    }

    TOPTHETA_DEVICE inline void AddValueTile()
    {
        const LocalTensor<T> values = stream_.Take(1);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            weightedSum_.Add(values, head, stream_.List().weightsAt + stream_.ValuesTaken(), stream_.NextValueRows());
        }
        stream_.Free(1);
    }

    TOPTHETA_DEVICE inline void AddRemainingValues()
    {
        while (stream_.ValuesLeft()) {
            stream_.Fill();
            AddValueTile();
        }
    }

    TOPTHETA_DEVICE inline void SelectNext(const Chunk& chunk)
    {
        gather_.Finish();
        selection_.MakeList(chunk);
        selection_.UpdateMaximum(chunk);
        selection_.RescaleAccumulators();
        const RowList list = MakeRowList(chunk);
        PlanChunk();
        if (gather_.Fits(list)) {
            gather_.Begin(list);
        } else {
            stream_.BeginValues(list);
        }
        stream_.Fill();
        selection_.AddChunk(chunk, list, NeedsTotal());
    }

    // Nothing hides the copies of the last chunk, so they start before all other work that is left.
    template <typename Next>
    TOPTHETA_DEVICE inline void SelectLast(const Chunk& chunk, Next& next)
    {
        // the list before must be fetched before a new one takes its place
        gather_.FetchAll(stream_.Issued());
        selection_.MakeList(chunk);
        selection_.UpdateMaximum(chunk);
        RowList list = MakeRowList(chunk);
        const bool fits = list.count <= ub_->Layout().tileRows;
        if (fits) {
            const uint32_t slot = stream_.LendSlot();
            lastGather_.SetRoom(stream_.SlotRows(slot), slot);
            lastGather_.Begin(list);
            lastGather_.FetchAll(stream_.Issued());
            next.StartNext();
        } else {
            stream_.BeginValues(list);
            stream_.Fill();
        }
        // the weights of both lists at once where they fit, since the V rows of the one before may still be on the way
        const uint32_t room = ub_->Layout().chunkRows / 2 / kLanes * kLanes;
        if (!gather_.Done() && fits && gather_.List().count <= room && list.count <= room) {
            list.weightsAt = room;
            lastGather_.SetWeightsAt(room);
        } else {
            gather_.Finish();
        }
        selection_.AddChunk(chunk, list, NeedsTotal());
        gather_.Finish();
        selection_.RescaleAccumulators();
        if (fits) {
            lastGather_.Finish();
            stream_.TakeSlotBack();
        } else {
            AddRemainingValues();
        }
    }

    TOPTHETA_DEVICE inline RowList MakeRowList(const Chunk& chunk)
    {
        RowList list;
        list.chunkBegin = chunk.begin;
        list.kept = selection_.Count();
        list.dense = tiling_->path != kPathGather && list.kept > 0 &&
                     (tiling_->path == kPathDense || 2 * list.kept > chunk.rows);
        list.count = list.dense ? chunk.rows : list.kept;
        return list;
    }

    // Whether the mass of all keys is wanted.
    TOPTHETA_DEVICE inline bool NeedsTotal() const
    {
        return tiling_->sdc == kSdcExact || tiling_->withStats || tiling_->partial;
    }

    static constexpr uint32_t kShortRows = 256;  // not worth a second chunk

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    QueryKeyProduct<T> product_;
    ChunkSelection<T> selection_;
    WeightedSum<T> weightedSum_;
    RowStream<T> stream_;
    ValueGather<T> gather_;
    ValueGather<T> lastGather_;  // its V rows lie in a slot of the ring, which is idle by then
    uint32_t chunkTiles_ = 0;    // K tiles of the chunk to be scored next
};

}  // namespace toptheta
