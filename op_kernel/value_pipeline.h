// From scores to sums of V rows, whoever multiplied the K rows: what the pipelines share.
#pragma once

#include "chunk_scores.h"
#include "chunk_selection.h"
#include "kernel_tensors.h"
#include "list_entries.h"
#include "own_rows.h"
#include "row_stream.h"
#include "running_softmax.h"
#include "score_store.h"
#include "sequence_lengths.h"
#include "value_gather.h"

namespace toptheta {

template <typename Types>
class ValuePipeline {
public:
    using Key = typename Types::Key;
    using Value = typename Types::Value;

    // What stays in UB from the first segment to the last.
    TOPTHETA_DEVICE inline void Prepare()
    {
        selection_.Prepare();
        softmax_.Prepare();
    }

    // Forgets the segment before, or the sample of this one.
    TOPTHETA_DEVICE inline void Forget()
    {
        selection_.Begin();
        softmax_.Begin();
    }

    // Second phase of post-softmax: the threshold is known, the scores are read again.
    TOPTHETA_DEVICE inline void SelectStored(const Segment& segment, ScoreStore& store)
    {
        for (uint32_t row = segment.rowBegin; row < segment.rowEnd; row += ub_->Layout().chunkRows) {
            const Chunk chunk = store.Load(row, Least(ub_->Layout().chunkRows, segment.rowEnd - row));
            if constexpr (IsInt8<Value>::kValue) {
                LoadValueScales(chunk);
            }
            selection_.MakeList(chunk);
            const RowList list = MakeRowList(chunk);
            stream_.BeginValues(list);
            stream_.Fill();
            AddChunk(chunk, list, false);
            AddRemainingValues();
        }
        selection_.Finish();
    }

    // Adds one V row with weight 1 for one head.
    TOPTHETA_DEVICE inline void AddSingleRow(uint32_t head, uint32_t row)
    {
        if constexpr (IsInt8<Value>::kValue) {
            gather_.AddSingleRow(head, row, valueScales_);
        } else {
            gather_.AddSingleRow(head, row);
        }
    }

    // Scales of V rows are those of the (sequence, KV head) of a segment.
    TOPTHETA_DEVICE inline void BeginValueScales(const Segment& segment, uint32_t start)
    {
        valueScales_.Begin(segment.batch, segment.kvHead, start);
    }

    TOPTHETA_DEVICE inline ChunkSelection<Types>& Selection() { return selection_; }

protected:
    // `keys`: null where no K rows go through the ring of tiles.
    TOPTHETA_DEVICE inline void InitValues(UbMap* ub, const TilingData* tiling, CacheRows<Key>* keys,
                                           CacheRows<Value>* values, const VisibleKeys<Types::kTokens>* visible)
    {
        ub_ = ub;
        tiling_ = tiling;
        values_ = values;
        scores_.Init(ub, tiling->scaleValue, visible);
        selection_.Init(ub, visible);
        entries_.Init(ub);
        softmax_.Init(ub, tiling->headDim, &entries_);
        weightedSum_.Init(ub, tiling->headDim);
        ownRows_.Init(ub, tiling->headDim);
        stream_.Init(ub, tiling->headDim, keys, values);
        gather_.Init(ub, tiling->headDim, values, &weightedSum_);
        GiveValueBuffer(gather_);
        SetFlag<HardEvent::V_MTE2>(kValueEvent);
    }

    TOPTHETA_DEVICE inline void InitScales(const KernelTensors& tensors)
    {
        if constexpr (IsInt8<Value>::kValue) {
            valueScales_.Init(*tiling_, tensors.scales->valueScales, tensors.valueScale);
            weightedSum_.Init(ub_, tiling_->headDim, valueScales_.PerToken());
            ownRows_.Init(ub_, tiling_->headDim, valueScales_.PerToken());
        }
    }

    // Fetches the scales of the V rows of a chunk at once, where no K tiles bring them.
    TOPTHETA_DEVICE inline void LoadValueScales(const Chunk& chunk)
    {
        softmax_.SetScales({valueScales_.PerToken(), 0});
        if (!valueScales_.PerToken()) {
            return;
        }
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        values_->LoadScales(ub_->ValueScales(), valueScales_, chunk.begin, chunk.rows);
        SetFlag<HardEvent::MTE2_V>(kParameterEvent);
        WaitFlag<HardEvent::MTE2_V>(kParameterEvent);
    }

    // Weights and sums of a chunk, and what the scalar unit has to know of it.
    TOPTHETA_DEVICE inline void AddChunk(const Chunk& chunk, const RowList& list, bool total)
    {
        softmax_.WeighChunk(chunk, list, total);
        FinishChunk(chunk, list);
    }

    TOPTHETA_DEVICE inline void FinishChunk(const Chunk& chunk, const RowList& list)
    {
        if (list.apart) {
            entries_.Read();
        }
        selection_.FinishChunk(chunk, list);
    }

    TOPTHETA_DEVICE inline void GiveValueBuffer(ValueGather<Value>& gather)
    {
        gather.SetRoom(ub_->template ValueRows<Value>(tiling_->headDim), kValueEvent);
    }

    TOPTHETA_DEVICE inline void DrainValues()
    {
        stream_.Drain();
        WaitFlag<HardEvent::V_MTE2>(kValueEvent);
    }

    // Adds V tiles that have been asked for, at most `most`. Together they cost each head one sum.
    TOPTHETA_DEVICE inline void AddValueTiles(uint32_t most)
    {
        const uint32_t tiles = Least(stream_.ValueTiles(), most);
        if (own_) {
            AddOwnRows();
            return;
        }
        const uint32_t first = stream_.FirstEntry(0);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            weightedSum_.Begin(WeightsOf(*ub_, stream_.List(), head, first), stream_.FirstEntry(tiles) - first);
            for (uint32_t tile = 0; tile < tiles; tile++) {
                const uint32_t entry = stream_.FirstEntry(tile);
                if (head == 0) {
                    stream_.WaitForValues(tile);
                }
                weightedSum_.Add(stream_.Values(tile), WeightsOf(*ub_, stream_.List(), head, entry),
                                 stream_.FirstEntry(tile + 1) - entry);
            }
            weightedSum_.Finish(head);
            stream_.AskForSome();
        }
        for (uint32_t tile = 0; tile < tiles; tile++) {
            stream_.Free(1);
        }
    }

    // Adds the V tile at the front of the ring.
    TOPTHETA_DEVICE inline void AddOwnRows()
    {
        if constexpr (IsInt8<Value>::kValue) {
            if (!ownRows_.Widens()) {
                AddOwnRowsAs<half>();
                return;
            }
        }
        AddOwnRowsAs<typename FactorOf<Value>::Type>();
    }

    template <typename Factor>
    TOPTHETA_DEVICE inline void AddOwnRowsAs()
    {
        const uint32_t first = stream_.FirstEntry(0);
        const uint32_t end = stream_.FirstEntry(1);
        stream_.WaitForValues(0);
        for (uint32_t piece = first; piece < end; piece += ownRows_.PieceRows()) {
            const uint32_t pieceEnd = Least(piece + ownRows_.PieceRows(), end);
            const LocalTensor<Factor> values = ownRows_.template Piece<Factor>(
                stream_.Values(0)[(piece - first) * tiling_->headDim], pieceEnd - piece);
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                ownRows_.template Add<Factor>(values, stream_.List(), head, entries_.Of(head), piece, pieceEnd);
                stream_.AskForSome();
            }
        }
        stream_.Free(1);
        // entries have been read: their place may be written
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
    }

    // One slot is left for the next tile to arrive in.
    TOPTHETA_DEVICE inline void AddRemainingValues()
    {
        while (stream_.ValuesLeft()) {
            stream_.Fill();
            AddValueTiles(ub_->Layout().slots - 1);
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
        list.tileRows = ub_->Layout().valueTileRows;
        list.weightPitch = list.dense ? PitchOf(*ub_, chunk) : AlignUp(list.count, kLanes);
        return list;
    }

    // Whether the mass of all keys is wanted.
    TOPTHETA_DEVICE inline bool NeedsTotal() const
    {
        return tiling_->sdc == kSdcExact || tiling_->withStats || tiling_->partial;
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    CacheRows<Value>* values_ = nullptr;
    ChunkScores<Types> scores_;
    ChunkSelection<Types> selection_;
    ListEntries entries_;
    RunningSoftmax<Types> softmax_;
    RowScales valueScales_;
    WeightedSum<Value> weightedSum_;
    OwnRows<Value> ownRows_;
    bool own_ = false;  // the rows of the list go to the heads one by one
    RowStream<Key, Value> stream_;
    ValueGather<Value> gather_;
};

}  // namespace toptheta
