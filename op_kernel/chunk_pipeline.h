// The chunks of a segment where the vector unit multiplies the K rows: scores, threshold test, V rows.
//
// While the K tiles of a chunk are multiplied, the V rows that the chunk before it keeps are fetched and added.
#pragma once

#include "query_key_product.h"
#include "value_pipeline.h"

namespace toptheta {

template <typename Types>
class ChunkPipeline : public ValuePipeline<Types> {
public:
    using typename ValuePipeline<Types>::Key;
    using typename ValuePipeline<Types>::Value;
    static constexpr bool kMultipliesKeys = true;

    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, const KernelTensors& tensors, GM_ADDR,
                                     CacheRows<Value>* values, const VisibleKeys<Types::kTokens>* visible)
    {
        keyRows_.Init(*ub, *tiling, tiling->key, tensors.key, tensors.blockTable, 0, kKeyTableEvent);
        this->InitValues(ub, tiling, &keyRows_, values, visible);
        product_.Init(ub, tiling->headDim);
        lastGather_.Init(ub, tiling->headDim, values, &weightedSum_);
        this->GiveValueBuffer(lastGather_);
        if constexpr (IsInt8<Key>::kValue) {
            this->InitScales(tensors);
            keyScales_.Init(*tiling, tensors.scales->keyScales, tensors.keyScale);
            if constexpr (IsInt8<Value>::kValue) {
                listScales_.Init(*tiling, tensors.scales->valueScales, tensors.valueScale);
            }
            const bool later = tiling->placement == kPostSoftmax && !Has(*tiling, InputIndex::kRowLse);
            stream_.SetScales(keyScales_.PerToken() ? &keyScales_ : nullptr,
                              listScales_.PerToken() && !later ? &listScales_ : nullptr);
        }
    }

    // Around all segments of a core.
    TOPTHETA_DEVICE inline void BeginWork(const WorkTotal&, SequenceLengths<Types>&) {}
    TOPTHETA_DEVICE inline void EndWork() {}

    TOPTHETA_DEVICE inline void Drain()
    {
        keyRows_.End();
        this->DrainValues();
    }

    // Asks for the first K tiles of a segment; `start` is the first valid row of its sequence.
    TOPTHETA_DEVICE inline void Start(const Segment& segment, uint32_t start)
    {
        StartRows(segment, start, tiling_->placement == kSampledSoftmax);
    }

    // `sampled`: the keys of a sample come first.
    TOPTHETA_DEVICE inline void StartRows(const Segment& segment, uint32_t start, bool sampled)
    {
        keyRows_.Begin(segment.batch, segment.kvHead, start, sampled ? 0 : segment.rowBegin, segment.unitRows);
        sample_ = KeySample(sampled ? segment.unitRows : 0);
        if (sampled) {
            stream_.BeginSample(sample_);
        } else {
            stream_.Begin(segment.rowBegin, segment.rowEnd);
        }
        if constexpr (IsInt8<Key>::kValue) {
            keyScales_.Begin(segment.batch, segment.kvHead, start);
            listScales_.Begin(segment.batch, segment.kvHead, start);
            stream_.BeginScales();
        }
        PlanChunk();
        stream_.Fill();
    }

    // The whole of a segment in one pass. `next.StartNext()` is called when the ring has room for the next segment.
    template <typename Next>
    TOPTHETA_DEVICE inline void StreamAndSelect(Next& next)
    {
        // each step stands here once, since the device compiler inlines every function
        for (bool more = true; more;) {
            const Chunk chunk = ScoreChunk(0);
            this->AddRemainingValues();
            more = stream_.KeysLeft() > 0;
            if (more) {
                SelectNext(chunk);
            } else {
                SelectLast(chunk, next);
            }
        }
        selection_.Finish();
    }

    // First phase of post-softmax: scores, maximum and total mass, of all keys or of a sample.
    TOPTHETA_DEVICE inline void StreamScores(ScoreStore& store)
    {
        while (stream_.KeysLeft() > 0) {
            const uint32_t row = stream_.FirstRow(stream_.KeysTaken());
            const Chunk chunk = ScoreChunk(store.BeginChunk(row));
            PlanChunk();
            stream_.Fill();
            scores_.WeighSample(chunk, sample_);
            softmax_.UpdateMaximum(chunk);
            softmax_.AddTotal(chunk);
            store.Store(chunk);
        }
    }

private:
    // K tiles of a chunk when `left` remain. The last chunk is short: less is left to do after its last K row. The one
    // before it is long: its V rows come behind that K row, and keep the copies busy until the last chunk is tested.
    TOPTHETA_DEVICE inline uint32_t ChunkTiles(uint32_t left) const
    {
        const uint32_t most = ub_->Layout().chunkRows / ub_->Layout().tileRows;
        const uint32_t tail = stream_.TailTiles();
        const bool isShort = left == stream_.KeyTiles() && left * ub_->Layout().tileRows <= kShortRows;
        if (left <= tail || (isShort && left <= most)) {
            return left;
        }
        const uint32_t odd = (left - tail) % most;
        return odd > 0 ? odd : most;
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
        ClearScores(*ub_, scoreRow, stream_.RowsOf(stream_.KeysTaken(), tiles));
        while (tiles > 0) {
            if (stream_.NextIsValues()) {
                this->AddValueTiles(1);
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
        if constexpr (IsInt8<Key>::kValue) {
            const uint32_t scalesAt = stream_.ScaleAt(chunk.begin);
            scores_.SetScales({keyScales_.PerToken(), scalesAt});
            softmax_.SetScales({valueScales_.PerToken(), scalesAt});
        }
        scores_.Scale(chunk);
        return chunk;
    }

    TOPTHETA_DEVICE inline void SelectNext(const Chunk& chunk)
    {
        gather_.Finish();
        selection_.MakeList(chunk);
        softmax_.UpdateMaximum(chunk);
        softmax_.RescaleAccumulators();
        const RowList list = this->MakeRowList(chunk);
        PlanChunk();
        if (stream_.KeysLeft() == chunkTiles_) {
            // the V buffer will be wanted for the last chunk
            const uint32_t slot = stream_.SlotBehind(chunkTiles_);
            gather_.SetRoom(stream_.SlotRows(slot), slot, true);
        }
        if (gather_.Fits(list)) {
            gather_.Begin(list);
        } else {
            stream_.BeginValues(list);
        }
        stream_.Fill();
        this->AddChunk(chunk, list, this->NeedsTotal());
    }

    // Where the V rows of the last chunk go: all at once into the V buffer or a slot of the ring, or through the ring.
    enum class LastRows { kInBuffer, kInSlot, kByTiles };

    // Nothing hides the copies of the last chunk, so they start before all other work that is left.
    template <typename Next>
    TOPTHETA_DEVICE inline void SelectLast(const Chunk& chunk, Next& next)
    {
        // the list before must be fetched before a new one takes its place
        gather_.FetchAll(stream_.Issued());
        selection_.MakeList(chunk);
        softmax_.UpdateMaximum(chunk);
        RowList list = this->MakeRowList(chunk);
        const LastRows rows = FindRoom(list);
        BeginLast(list, rows);
        this->AddChunk(chunk, list, this->NeedsTotal());
        AddLastLists(rows, next);
        this->GiveValueBuffer(lastGather_);
    }

    TOPTHETA_DEVICE inline LastRows FindRoom(const RowList& list)
    {
        if (lastGather_.Fits(list)) {
            return LastRows::kInBuffer;
        }
        // no K tile is left, so a slot that the list before does not use may take its rows
        const uint32_t slot = stream_.SlotBehind(1);
        lastGather_.SetRoom(stream_.SlotRows(slot), slot);
        return lastGather_.Fits(list) ? LastRows::kInSlot : LastRows::kByTiles;
    }

    // Asks for the V rows of the last list. The list before is finished first, unless there is room for the weights of
    // both: its V rows may still be on the way.
    TOPTHETA_DEVICE inline void BeginLast(RowList& list, LastRows rows)
    {
        if (rows == LastRows::kByTiles) {
            gather_.Finish();
            stream_.BeginValues(list);
            stream_.Fill();
            return;
        }
        const uint32_t room = ub_->Layout().chunkRows / 2 / kLanes * kLanes;
        const bool both = !gather_.Done() && gather_.List().weightPitch <= room && list.weightPitch <= room;
        list.weightsAt = both ? ub_->Heads() * room : 0;
        lastGather_.Begin(list);
        lastGather_.FetchAll(stream_.Issued());
        if (!both) {
            gather_.Finish();
        }
    }

    template <typename Next>
    TOPTHETA_DEVICE inline void AddLastLists(LastRows rows, Next& next)
    {
        // one sum for both lists of a single head, so that its partial sums are folded once
        const bool joint = ub_->Heads() == 1 && !lastGather_.Done() && lastGather_.List().count <= gather_.List().count;
        if (joint) {
            softmax_.RescaleWeights(gather_.List());
        }
        next.PrepareOutput();
        gather_.Finish(joint ? SumPart::kFirst : SumPart::kWhole);
        this->GiveValueBuffer(gather_);
        softmax_.RescaleAccumulators();
        if (rows == LastRows::kInBuffer) {
            // its tiles may take the slot in which the V rows of the list before were
            next.StartNext();
        }
        if (rows == LastRows::kByTiles) {
            this->AddRemainingValues();
        } else {
            lastGather_.Finish(joint ? SumPart::kLast : SumPart::kWhole);
        }
    }

    static constexpr uint32_t kShortRows = 256;  // not worth a second chunk

    using ValuePipeline<Types>::ub_;
    using ValuePipeline<Types>::tiling_;
    using ValuePipeline<Types>::scores_;
    using ValuePipeline<Types>::selection_;
    using ValuePipeline<Types>::softmax_;
    using ValuePipeline<Types>::weightedSum_;
    using ValuePipeline<Types>::stream_;
    using ValuePipeline<Types>::gather_;
    using ValuePipeline<Types>::valueScales_;
    CacheRows<Key> keyRows_;
    KeySample sample_;
    RowScales keyScales_;
    RowScales listScales_;  // of the V rows that lie where the K rows do
    QueryKeyProduct<Key> product_;
    ValueGather<Value> lastGather_;  // of the last chunk
    uint32_t chunkTiles_ = 0;    // K tiles of the chunk to be scored next
};

}  // namespace toptheta
