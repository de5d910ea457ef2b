// The chunks of a segment where the cube core multiplies the K rows: the scores come through a ring in global memory,
// and the ring of tiles in the Unified Buffer holds V rows alone.
#pragma once

#include "query_parts.h"
#include "score_ring.h"
#include "value_pipeline.h"

namespace toptheta {

template <typename Types>
class CubeChunkPipeline : public ValuePipeline<Types> {
public:
    using typename ValuePipeline<Types>::Key;
    using typename ValuePipeline<Types>::Value;
    static constexpr bool kMultipliesKeys = false;
    static constexpr bool kInt8 = IsInt8<Key>::kValue;

    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, const KernelTensors& tensors,
                                     GM_ADDR workspace, CacheRows<Value>* values,
                                     const VisibleKeys<Types::kTokens>* visible)
    {
        this->InitValues(ub, tiling, nullptr, values, visible);
        core_ = static_cast<uint32_t>(AscendC::GetBlockIdx());
        if constexpr (kInt8) {
            parts_.Init(ub, tiling, tensors, workspace);
            keyScales_.Init(*tiling, tensors.scales->keyScales, tensors.keyScale);
            this->InitScales(tensors);
        }
        ring_.Init(ub, tiling, workspace, core_);
    }

    // Both vector cores of a block take part in as many rounds as the one that has more of them.
    TOPTHETA_DEVICE inline void BeginWork(const WorkTotal& total, SequenceLengths<Types>& lengths)
    {
        if constexpr (kInt8) {
            parts_.MakeAll(lengths.SegmentsOf(total, core_), core_);
        }
        ring_.Expect(Most(CountRounds(total, lengths, core_), CountRounds(total, lengths, core_ ^ 1)));
    }

    TOPTHETA_DEVICE inline void EndWork() { ring_.Finish(); }

    TOPTHETA_DEVICE inline void Drain() { this->DrainValues(); }

    TOPTHETA_DEVICE inline void Start(const Segment& segment, uint32_t start)
    {
        StartRows(segment, start, tiling_->placement == kSampledSoftmax);
        if constexpr (kInt8) {
            parts_.CopyScales(segment, core_);
            keyScales_.Begin(segment.batch, segment.kvHead, start);
        }
        stream_.Begin(0, 0);
    }

    // `sampled`: the keys of a sample come first.
    TOPTHETA_DEVICE inline void StartRows(const Segment& segment, uint32_t, bool sampled)
    {
        sample_ = KeySample(sampled ? segment.unitRows : 0);
        if (sampled) {
            ring_.Begin(0, sample_.Keys(), false);
        } else {
            ring_.Begin(segment.rowBegin, segment.rowEnd);
        }
    }

    // The whole of a segment in one pass. The V rows of a chunk are added before its successor is tested, or after
    // that, while those of the successor arrive.
    template <typename Next>
    TOPTHETA_DEVICE inline void StreamAndSelect(Next& next)
    {
        uint32_t row = ring_.Row();
        isShort_ = ring_.RowsLeft() <= 2 * ring_.RoundRows();
        ring_.SetLongChunks(WantsLongChunks());
        // the place where int8 products arrive is as large as two for scores
        uint32_t scoreRow = BeginNext(kInt8 ? 0 : ub_->SecondScores());
        AskRounds();
        for (bool more = true; more;) {
            const Chunk chunk = TakeChunk(row, scoreRow);
            more = ring_.RowsLeft() > 0;
            row = ring_.Row();
            if (more) {
                scoreRow = BeginNext(scoreRow);
            }
            AskForAllValues();
            selection_.MakeList(chunk);
            softmax_.UpdateMaximum(chunk);
            RowList list = SetApart(this->MakeRowList(chunk));
            if (!more && ub_->Heads() < kLateHeads) {
                list.tileRows = SmallTileRows(list);
            }
            isDense_ = list.dense;
            ring_.SetLongChunks(WantsLongChunks());
            stream_.QueueValues(list);
            AddWhileQueued();
            if (more || ub_->Heads() >= kLateHeads) {
                stream_.Fill();
            } else {
                // the rest after the weights: the scalar unit should not wait for room in the queue of the copies yet
                stream_.AskForSome();
            }
            softmax_.RescaleAccumulators();
            softmax_.WeighChunk(chunk, list, this->NeedsTotal());
            if (kInt8 && more) {
                // V has its work, and the scalar unit is about to wait for some of it
                AskRounds();
            }
            this->FinishChunk(chunk, list);
            ChooseOwnRows(list);
            if (!more) {
                // counts for the scalar unit, before it hands out the sums
                selection_.Finish();
            }
            stream_.Fill();
            if (!more || !IsLate(list)) {
                AddValuesAndAskRounds();
            } else if (!kInt8) {
                AskRounds();
            }
        }
        next.StartNext();
    }

    // First phase of post-softmax: scores, maximum and total mass, of all keys or of a sample.
    TOPTHETA_DEVICE inline void StreamScores(ScoreStore& store)
    {
        ring_.SetLongChunks(true);
        while (ring_.RowsLeft() > 0) {
            const uint32_t row = ring_.Row();
            const uint32_t scoreRow = store.BeginChunk(row);
            BeginChunk(scoreRow, ring_.NextIsApart() ? ub_->SecondScores() : scoreRow);
            AskRounds();
            const Chunk chunk = TakeChunk(row, scoreRow);
            scores_.WeighSample(chunk, sample_);
            softmax_.UpdateMaximum(chunk);
            softmax_.AddTotal(chunk);
            store.Store(chunk);
        }
    }

private:
    static constexpr uint32_t kLateHeads = 7;
    static constexpr uint32_t kManyHeads = 6;
    static constexpr uint32_t kFewEntries = 16;
    static constexpr uint32_t kSmallTileRows = 16;
    static constexpr uint32_t kShortList = 256;  // entries: masks of the heads begin at blocks of 32 bytes

    // Whether the vector unit would wait too long for the V rows of a list, and has too much to do for that: with few
    // heads it waits for the cube core anyway, and should have added all when the next scores come.
    TOPTHETA_DEVICE inline bool IsLate(const RowList& list) const
    {
        return kInt8 || (ub_->Heads() >= kLateHeads && list.count > ub_->Layout().valueTileRows);
    }

    // Short chunks leave less to do after the last scores, and long ones less to do in all. V has time for short ones
    // with few heads, unless it has to add all V rows.
    TOPTHETA_DEVICE inline bool WantsLongChunks() const
    {
        return kInt8 || isDense_ || ub_->Heads() >= kLateHeads || (ub_->Heads() >= kManyHeads && !isShort_);
    }

    // After the last chunk, V adds a tile while the next ones arrive.
    TOPTHETA_DEVICE inline uint32_t SmallTileRows(const RowList& list) const
    {
        const uint32_t rows = AlignUp(CeilDiv(list.count, ub_->Layout().slots), kSmallTileRows);
        return Least(rows, list.tileRows);
    }

    TOPTHETA_DEVICE inline uint32_t CountRounds(const WorkTotal& total, SequenceLengths<Types>& lengths, uint32_t core)
    {
        SegmentIterator<SequenceLengths<Types>> segments = lengths.SegmentsOf(total, core);
        Segment segment;
        uint32_t rounds = 0;
        while (segments.Next(segment)) {
            if (tiling_->placement == kSampledSoftmax) {
                rounds += CeilDiv(KeySample(segment.unitRows).Keys(), ring_.RoundRows());
            }
            rounds += CeilDiv(segment.rowEnd - segment.rowBegin, ring_.RoundRows());
        }
        return rounds;
    }

    // Begins the next chunk, whose scores arrive where those of the chunk before at `scoreRow` are not; returns where
    // they will lie. If they come to another place first, they take that of that chunk.
    TOPTHETA_DEVICE inline uint32_t BeginNext(uint32_t scoreRow)
    {
        const uint32_t arrival = ub_->SecondScores() - scoreRow;
        const uint32_t next = ring_.NextIsApart() ? scoreRow : arrival;
        BeginChunk(next, arrival);
        return next;
    }

    // Begins a chunk whose scores will lie from `scoreRow` on.
    TOPTHETA_DEVICE inline void BeginChunk(uint32_t scoreRow, uint32_t arrival)
    {
        if (scoreRow == arrival) {
            ClearScores(*ub_, scoreRow, ring_.NextRows());
        }
        ring_.BeginChunk(arrival);
    }

    TOPTHETA_DEVICE inline void AskRounds()
    {
        if constexpr (kInt8) {
            // a sample needs none: K has scales of channels, and no V row is selected
            if (ring_.RoundsLeft() && sample_.Keys() == 0) {
                AskScales(ring_.Row(), ring_.NextRows());
            }
        }
        while (ring_.RoundsLeft()) {
            ring_.AskRound();
        }
    }

    // Scales of the rows of a chunk, where each row has its own; before the scores, whose flag is for both.
    TOPTHETA_DEVICE inline void AskScales(uint32_t row, uint32_t rows)
    {
        if (keyScales_.PerToken()) {
            values_->LoadScales(ub_->ArrivedScales(), keyScales_, row, rows);
        }
        if constexpr (IsInt8<Value>::kValue) {
            softmax_.SetScales({valueScales_.PerToken(), 0});
            if (valueScales_.PerToken()) {
                // the weights of the chunk before have theirs
                SetFlag<HardEvent::V_MTE2>(kParameterEvent);
                WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
                values_->LoadScales(ub_->ValueScales(), valueScales_, row, rows);
            }
        }
    }

    // Whether the rows may go to the heads one by one is known before the weights are made, whether it pays after.
    TOPTHETA_DEVICE inline RowList SetApart(RowList list) const
    {
        const uint32_t chunkRows = ub_->Layout().chunkRows;
        if (ub_->Heads() > 1 && chunkRows >= kShortList && list.count > kFewEntries &&
            (!list.dense || list.kept < list.count)) {
            list.apart = true;
            list.weightPitch = list.dense || list.count > kShortList ? chunkRows : kShortList;
        }
        return list;
    }

    TOPTHETA_DEVICE inline void ChooseOwnRows(const RowList& list)
    {
        uint32_t kept = 0;
        for (uint32_t head = 0; head < ub_->Heads() && list.apart; head++) {
            kept += entries_.Of(head);
        }
        own_ = ownRows_.Pays(list, kept);
        if (own_) {
            ownRows_.Begin(list);
        }
    }

    // The list of a chunk must stay until its V rows have been asked for.
    TOPTHETA_DEVICE inline void AskForAllValues()
    {
        while (!stream_.AllAskedFor()) {
            this->AddValueTiles(1);
            stream_.Fill();
        }
    }

    // Adds the V rows of the chunk before, while those of the list that is queued are asked for.
    TOPTHETA_DEVICE inline void AddWhileQueued()
    {
        stream_.AskForSome();
        while (stream_.ValuesLeft()) {
            this->AddValueTiles(ub_->Layout().slots - 1);
        }
        stream_.NextList();
    }

    // A tile is added while the cube core may still be at work on the next rounds, whose copies the others hide.
    TOPTHETA_DEVICE inline void AddValuesAndAskRounds()
    {
        if (stream_.ValuesLeft()) {
            this->AddValueTiles(1);
        }
        AskRounds();
        this->AddRemainingValues();
    }

    TOPTHETA_DEVICE inline Chunk TakeChunk(uint32_t row, uint32_t scoreRow)
    {
        const Chunk chunk = {row, ring_.TakeChunk(scoreRow, kInt8 && keyScales_.PerToken()), scoreRow};
        if constexpr (kInt8) {
            if (!IsJoint(*ub_, scoreRow)) {
                scores_.FillTailsOf(chunk);
            }
        } else {
            scores_.Scale(chunk);
        }
        if constexpr (Types::kTokens) {
            scores_.HideKeys(chunk);
        }
        return chunk;
    }

    using ValuePipeline<Types>::ub_;
    using ValuePipeline<Types>::tiling_;
    using ValuePipeline<Types>::scores_;
    using ValuePipeline<Types>::selection_;
    using ValuePipeline<Types>::entries_;
    using ValuePipeline<Types>::softmax_;
    using ValuePipeline<Types>::stream_;
    using ValuePipeline<Types>::values_;
    using ValuePipeline<Types>::valueScales_;
    using ValuePipeline<Types>::ownRows_;
    using ValuePipeline<Types>::own_;
    ScoreRing<Key> ring_;
    KeySample sample_;
    // of int8 K rows
    QueryParts<Types> parts_;
    RowScales keyScales_;
    uint32_t core_ = 0;
    bool isShort_ = false;  // two rounds at most in this segment
    bool isDense_ = false;  // the list made last
};

}  // namespace toptheta
