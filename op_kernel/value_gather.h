// Fetches the V rows on a list, two rows with one command, and adds them once they have arrived.
//
// The list of a chunk is worked off while the K tiles of the next chunk are multiplied, a round of V rows at a time:
// copies are handed out in small batches, since a full copy queue would stall the core, and a round is added only
// after the K tiles that were asked for before it, since copies arrive in order.
#pragma once

#include "cache_rows.h"
#include "chunk_selection.h"
#include "weighted_sum.h"

namespace toptheta {

template <typename T>
class ValueGather {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim, CacheRows<T>* rows)
    {
        ub_ = ub;
        headDim_ = headDim;
        rows_ = rows;
        weightedSum_.Init(ub, headDim);
        SetFlag<HardEvent::V_MTE2>(kValueEvent);
    }

    TOPTHETA_DEVICE inline void Drain() { WaitFlag<HardEvent::V_MTE2>(kValueEvent); }

    TOPTHETA_DEVICE inline void Begin(const Chunk& chunk, const RowList& list)
    {
        chunkBegin_ = chunk.begin;
        list_ = list;
        roundBegin_ = 0;
        BeginRound();
    }

    // One step in the shadow of the K tiles: `issuedTiles` were asked for and `takenTiles` multiplied so far.
    TOPTHETA_DEVICE inline void Advance(uint32_t issuedTiles, uint32_t takenTiles)
    {
        if (Done()) {
            return;
        }
        if (fetched_ == roundRows_) {
            if (takenTiles < readyAfter_) {
                return;
            }
            AddRound();
        }
        Fetch(kBatchRows, issuedTiles);
    }

    // Finishes the list at once.
    TOPTHETA_DEVICE inline void Finish()
    {
        while (!Done()) {
            Fetch(roundRows_, 0);
            AddRound();
        }
    }

    // Fetches one row and adds it with weight 1 for one head.
    TOPTHETA_DEVICE inline void AddSingleRow(uint32_t head, uint32_t row)
    {
        WaitFlag<HardEvent::V_MTE2>(kValueEvent);
        rows_->LoadRow(ub_->ValueRows<T>(headDim_), row);
        SetFlag<HardEvent::MTE2_V>(kValueEvent);
        AscendC::Duplicate(ub_->Weights(head), 0.0f, static_cast<int32_t>(kBlockFloats));
        PipeBarrier<PIPE_V>();
        AscendC::Duplicate(ub_->Weights(head), WeightScale<T>::kValue, 1);
        WaitFlag<HardEvent::MTE2_V>(kValueEvent);
        weightedSum_.Add(head, 0, 1);
        SetFlag<HardEvent::V_MTE2>(kValueEvent);
    }

private:
    static constexpr uint32_t kBatchRows = 40;

    TOPTHETA_DEVICE inline bool Done() const { return roundBegin_ >= list_.count; }

    TOPTHETA_DEVICE inline void BeginRound()
    {
        roundRows_ = Done() ? 0 : Least(ub_->Layout().valueRowsPerRound, list_.count - roundBegin_);
        fetched_ = 0;
    }

    // Hands out copies for at most `rows` more rows of the round.
    TOPTHETA_DEVICE inline void Fetch(uint32_t rows, uint32_t issuedTiles)
    {
        if (Done() || fetched_ == roundRows_) {
            return;
        }
        if (fetched_ == 0) {
            WaitFlag<HardEvent::V_MTE2>(kValueEvent);
        }
        if (list_.dense) {
            rows_->LoadTile(ub_->ValueRows<T>(headDim_), chunkBegin_ + roundBegin_, roundRows_);
            fetched_ = roundRows_;
        } else {
            FetchListed(Least(fetched_ + rows, roundRows_));
        }
        if (fetched_ == roundRows_) {
            SetFlag<HardEvent::MTE2_V>(kValueEvent);
            readyAfter_ = issuedTiles;
        }
    }

    // Row numbers come in pairs, two 16-bit numbers in one scalar read.
    TOPTHETA_DEVICE inline void FetchListed(uint32_t end)
    {
        LocalTensor<T> values = ub_->ValueRows<T>(headDim_);
        LocalTensor<uint32_t> pairs = ub_->RowList().template ReinterpretCast<uint32_t>();
        for (; fetched_ + 2 <= end; fetched_ += 2) {
            const uint32_t pair = pairs.GetValue((roundBegin_ + fetched_) / 2);
            rows_->LoadPair(values[fetched_ * headDim_], chunkBegin_ + (pair & 0xffff), chunkBegin_ + (pair >> 16));
        }
        if (fetched_ < end && end == roundRows_) {
            const uint32_t row = ub_->RowList().GetValue(roundBegin_ + fetched_);
            rows_->LoadRow(values[fetched_ * headDim_], chunkBegin_ + row);
            fetched_++;
        }
    }

    TOPTHETA_DEVICE inline void AddRound()
    {
        WaitFlag<HardEvent::MTE2_V>(kValueEvent);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            weightedSum_.Add(head, roundBegin_, roundRows_);
        }
        SetFlag<HardEvent::V_MTE2>(kValueEvent);
        roundBegin_ += roundRows_;
        BeginRound();
    }

    UbMap* ub_ = nullptr;
    CacheRows<T>* rows_ = nullptr;
    WeightedSum<T> weightedSum_;
    RowList list_;
    uint32_t headDim_ = 0;
    uint32_t chunkBegin_ = 0;
    uint32_t roundBegin_ = 0;   // first entry of the list in this round
    uint32_t roundRows_ = 0;
    uint32_t fetched_ = 0;      // rows of the round whose copies are handed out
    uint32_t readyAfter_ = 0;   // K tiles that were asked for before the last copy of the round
};

}  // namespace toptheta
