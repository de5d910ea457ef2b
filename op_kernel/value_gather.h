// Fetches the V rows on a list, two rows with one command, and adds them once they have arrived.
//
// The list of a chunk is worked off while the K tiles of the next chunk are multiplied, a round of V rows at a time:
// copies are handed out in batches, since a full copy queue would stall the core, and a round is added only after the
// K tiles that were asked for before it, since copies arrive in order.
#pragma once

#include "cache_rows.h"
#include "chunk_selection.h"
#include "weighted_sum.h"

namespace toptheta {

template <typename T>
class ValueGather {
public:
    // `values`: room for the V rows of a round, guarded by `event`, whose V_MTE2 flag says that the room is free.
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim, CacheRows<T>* rows, const LocalTensor<T>& values,
                                     int32_t event)
    {
        ub_ = ub;
        headDim_ = headDim;
        rows_ = rows;
        values_ = values;
        event_ = event;
        mostRows_ = values.GetSize() / headDim / kBlockFloats * kBlockFloats;
        weightedSum_.Init(ub, headDim);
    }

    TOPTHETA_DEVICE inline void Begin(const Chunk& chunk, const RowList& list)
    {
        chunkBegin_ = chunk.begin;
        list_ = list;
        roundBegin_ = 0;
        BeginRound();
    }

    TOPTHETA_DEVICE inline bool Done() const { return roundBegin_ >= list_.count; }
    TOPTHETA_DEVICE inline const RowList& List() const { return list_; }

    TOPTHETA_DEVICE inline void SetWeightsAt(uint32_t weightsAt) { list_.weightsAt = weightsAt; }

    // Whether copies will be needed beyond those of the present round.
    TOPTHETA_DEVICE inline bool NeedsMoreRounds() const { return roundBegin_ + roundRows_ < list_.count; }

    // One step in the shadow of the K tiles: `issuedTiles` were asked for and `takenTiles` multiplied so far.
    TOPTHETA_DEVICE inline void Advance(uint32_t issuedTiles, uint32_t takenTiles)
    {
        if (!Done() && fetched_ == roundRows_ && takenTiles >= readyAfter_) {
            AddRound();
        }
        Fetch(kBatchRows, issuedTiles);
    }

    // Hands out the copies of the present round without waiting for a step.
    TOPTHETA_DEVICE inline void FetchRound(uint32_t issuedTiles) { Fetch(mostRows_, issuedTiles); }

    // Finishes the list at once.
    TOPTHETA_DEVICE inline void Finish()
    {
        while (!Done()) {
            Fetch(mostRows_, 0);
            AddRound();
        }
    }

    // Fetches one row and adds it with weight 1 for one head.
    TOPTHETA_DEVICE inline void AddSingleRow(uint32_t head, uint32_t row)
    {
        WaitFlag<HardEvent::V_MTE2>(event_);
        rows_->LoadRow(values_, row);
        SetFlag<HardEvent::MTE2_V>(event_);
        AscendC::Duplicate(ub_->Weights(head), 0.0f, static_cast<int32_t>(kBlockFloats));
        PipeBarrier<PIPE_V>();
        AscendC::Duplicate(ub_->Weights(head), WeightScale<T>::kValue, 1);
        WaitFlag<HardEvent::MTE2_V>(event_);
        weightedSum_.Add(values_, head, 0, 1);
        SetFlag<HardEvent::V_MTE2>(event_);
    }

private:
    static constexpr uint32_t kBatchRows = 60;  // their copies and a ring of K tiles fill a queue of 32

    TOPTHETA_DEVICE inline void BeginRound()
    {
        roundRows_ = Done() ? 0 : Least(mostRows_, list_.count - roundBegin_);
        fetched_ = 0;
    }

    // Hands out copies for at most `rows` more rows of the round.
    TOPTHETA_DEVICE inline void Fetch(uint32_t rows, uint32_t issuedTiles)
    {
        if (Done() || fetched_ == roundRows_) {
            return;
        }
        if (fetched_ == 0) {
            WaitFlag<HardEvent::V_MTE2>(event_);
        }
        if (list_.dense) {
            rows_->LoadTile(values_, chunkBegin_ + roundBegin_, roundRows_);
            fetched_ = roundRows_;
        } else {
            FetchListed(Least(fetched_ + rows, roundRows_));
        }
        if (fetched_ == roundRows_) {
            SetFlag<HardEvent::MTE2_V>(event_);
            readyAfter_ = issuedTiles;
        }
    }

    // Row numbers come in pairs, two 16-bit numbers in one scalar read.
    TOPTHETA_DEVICE inline void FetchListed(uint32_t end)
    {
        LocalTensor<uint32_t> pairs = ub_->RowList().template ReinterpretCast<uint32_t>();
        for (; fetched_ + 2 <= end; fetched_ += 2) {
            const uint32_t pair = pairs.GetValue((roundBegin_ + fetched_) / 2);
            rows_->LoadPair(values_[fetched_ * headDim_], chunkBegin_ + (pair & 0xffff), chunkBegin_ + (pair >> 16));
        }
        if (fetched_ < end && end == roundRows_) {
            const uint32_t row = ub_->RowList().GetValue(roundBegin_ + fetched_);
            rows_->LoadRow(values_[fetched_ * headDim_], chunkBegin_ + row);
            fetched_++;
        }
    }

    TOPTHETA_DEVICE inline void AddRound()
    {
        WaitFlag<HardEvent::MTE2_V>(event_);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            weightedSum_.Add(values_, head, list_.weightsAt + roundBegin_, roundRows_);
        }
        SetFlag<HardEvent::V_MTE2>(event_);
        roundBegin_ += roundRows_;
        BeginRound();
    }

    UbMap* ub_ = nullptr;
    CacheRows<T>* rows_ = nullptr;
    WeightedSum<T> weightedSum_;
    LocalTensor<T> values_;
    RowList list_;
    int32_t event_ = 0;
    uint32_t headDim_ = 0;
    uint32_t mostRows_ = 0;     // rows of a round at most
    uint32_t chunkBegin_ = 0;
    uint32_t roundBegin_ = 0;   // first entry of the list in this round
    uint32_t roundRows_ = 0;
    uint32_t fetched_ = 0;      // rows of the round whose copies are handed out
    uint32_t readyAfter_ = 0;   // K tiles that were asked for before the last copy of the round
};

}  // namespace toptheta
