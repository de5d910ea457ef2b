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

    // The whole of a segment in one pass. The V rows of a chunk are added before its successor is tested, or after
    // that, while those of the successor arrive.
    template <typename Next>
    TOPTHETA_DEVICE inline void StreamAndSelect(Next& next)
    {
        uint32_t row = ring_.Row();
        isShort_ = ring_.RowsLeft() <= 2 * ring_.RoundRows();
        ring_.SetLongChunks(WantsLongChunks());
        uint32_t scoreRow = BeginNext(ub_->SecondScores());
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
            selection_.UpdateMaximum(chunk);
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
            selection_.RescaleAccumulators();
            selection_.AddChunk(chunk, list, this->NeedsTotal());
            ChooseOwnRows(list);
            if (!more) {
                // counts for the scalar unit, before it hands out the sums
                selection_.Finish();
            }
            stream_.Fill();
            if (more && IsLate(list)) {
                AskRounds();
            } else {
                AddValuesAndAskRounds();
            }
        }
        next.StartNext();
    }

    // First phase of post-softmax: scores, maximum and total mass.
    TOPTHETA_DEVICE inline void StreamScores(ScoreStore& store)
    {
        ring_.SetLongChunks(true);
        while (ring_.RowsLeft() > 0) {
            const uint32_t row = ring_.Row();
            const uint32_t scoreRow = store.BeginChunk(row);
            BeginChunk(scoreRow, ring_.NextIsFolded() ? ub_->SecondScores() : scoreRow);
            AskRounds();
            const Chunk chunk = TakeChunk(row, scoreRow);
            selection_.UpdateMaximum(chunk);
            selection_.AddTotal(chunk);
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
        return ub_->Heads() >= kLateHeads && list.count > ub_->Layout().tileRows;
    }

    // Short chunks leave less to do after the last scores, and long ones less to do in all. V has time for short ones
    // with few heads, unless it has to add all V rows.
    TOPTHETA_DEVICE inline bool WantsLongChunks() const
    {
        return isDense_ || ub_->Heads() >= kLateHeads || (ub_->Heads() >= kManyHeads && !isShort_);
    }

    // After the last chunk, V adds a tile while the next ones arrive.
    TOPTHETA_DEVICE inline uint32_t SmallTileRows(const RowList& list) const
    {
        const uint32_t rows = AlignUp(CeilDiv(list.count, ub_->Layout().slots), kSmallTileRows);
        return Least(rows, list.tileRows);
    }

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

    // Begins the next chunk, whose scores arrive where those of the chunk before at `scoreRow` are not; returns where
    // they will lie. If they have to be put in order, they take the place of that chunk.
    TOPTHETA_DEVICE inline uint32_t BeginNext(uint32_t scoreRow)
    {
        const uint32_t arrival = ub_->SecondScores() - scoreRow;
        const uint32_t next = ring_.NextIsFolded() ? scoreRow : arrival;
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
        while (ring_.RoundsLeft()) {
            ring_.AskRound();
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
            kept += selection_.EntriesOf(head);
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
        const Chunk chunk = {row, ring_.TakeChunk(scoreRow), scoreRow};
        selection_.ScaleScores(chunk);
        return chunk;
    }

    using ValuePipeline<T>::ub_;
    using ValuePipeline<T>::selection_;
    using ValuePipeline<T>::stream_;
    using ValuePipeline<T>::ownRows_;
    using ValuePipeline<T>::own_;
    ScoreRing ring_;
    uint32_t core_ = 0;
    bool isShort_ = false;  // two rounds at most in this segment
    bool isDense_ = false;  // the list made last
};

}  // namespace toptheta
