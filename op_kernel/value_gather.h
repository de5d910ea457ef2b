// A short list of V rows, fetched into a buffer of its own and added once the rows have arrived.
//
// The rows of a chunk are fetched while the K tiles of the next chunk are multiplied. They are added only after the
// tiles that were asked for before them, since copies arrive in order.
#pragma once

#include "value_fetch.h"
#include "weighted_sum.h"

namespace toptheta {

// What a list is of a weighted sum. For a single head, one list may go on with the sum of another.
enum class SumPart { kWhole, kFirst, kLast };

template <typename T>
class ValueGather {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim, CacheRows<T>* rows, WeightedSum<T>* weightedSum)
    {
        ub_ = ub;
        headDim_ = headDim;
        rows_ = rows;
        weightedSum_ = weightedSum;
    }

    // `values`: room for the V rows, guarded by `event`, whose V_MTE2 flag says that the room is free. `inParts`: the
    // first rows are added while the rest is still on its way.
    TOPTHETA_DEVICE inline void SetRoom(const LocalTensor<T>& values, int32_t event, bool inParts = false)
    {
        values_ = values;
        event_ = event;
        inParts_ = inParts;
    }

    TOPTHETA_DEVICE inline bool Fits(const RowList& list) const { return list.count * headDim_ <= values_.GetSize(); }

    TOPTHETA_DEVICE inline void Begin(const RowList& list)
    {
        list_ = list;
        fetched_ = 0;
        firstRows_ = 0;
    }

    TOPTHETA_DEVICE inline bool Done() const { return list_.count == 0; }
    TOPTHETA_DEVICE inline const RowList& List() const { return list_; }

    // One step in the shadow of the tiles: `issuedTiles` were asked for and `takenTiles` worked on so far.
    TOPTHETA_DEVICE inline void Advance(uint32_t issuedTiles, uint32_t takenTiles)
    {
        if (fetched_ == list_.count && takenTiles >= readyAfter_) {
            Add(SumPart::kWhole);
        }
        Fetch(inParts_ && fetched_ == 0 ? kFirstRows : list_.count, issuedTiles);
    }

    // Hands out the copies that are left.
    TOPTHETA_DEVICE inline void FetchAll(uint32_t issuedTiles) { Fetch(list_.count, issuedTiles); }

    // Finishes the list at once.
    TOPTHETA_DEVICE inline void Finish(SumPart part = SumPart::kWhole)
    {
        FetchAll(0);
        Add(part);
    }

    // Fetches one row and adds it with weight 1 for one head, or with its scale.
    TOPTHETA_DEVICE inline void AddSingleRow(uint32_t head, uint32_t row)
    {
        WaitFlag<HardEvent::V_MTE2>(event_);
        rows_->LoadRow(values_, row);
        SetFlag<HardEvent::MTE2_V>(event_);
        MakeSingleWeight();
        WaitFlag<HardEvent::MTE2_V>(event_);
        AddSingle(head);
    }

    TOPTHETA_DEVICE inline void AddSingleRow(uint32_t head, uint32_t row, RowScales& scales)
    {
        MakeSingleWeight();
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(event_);
        rows_->LoadRow(values_, row);
        if (scales.PerToken()) {
            rows_->LoadScale(ub_->Weights(), scales, row);
        }
        SetFlag<HardEvent::MTE2_V>(event_);
        WaitFlag<HardEvent::MTE2_V>(event_);
        if (scales.PerToken()) {
            AscendC::Muls(ub_->Weights(), ub_->Weights(), WeightScale<T>::kValue, static_cast<int32_t>(kBlockFloats));
        }
        AddSingle(head);
    }

private:
    static constexpr uint32_t kFirstRows = kLanes;  // their copies fill a queue of 32

    TOPTHETA_DEVICE inline void MakeSingleWeight()
    {
        AscendC::Duplicate(ub_->Weights(), 0.0f, static_cast<int32_t>(kBlockFloats));
        PipeBarrier<PIPE_V>();
        AscendC::Duplicate(ub_->Weights(), WeightScale<T>::kValue, 1);
    }

    TOPTHETA_DEVICE inline void AddSingle(uint32_t head)
    {
        weightedSum_->Begin(ub_->Weights(), 1);
        weightedSum_->Add(values_, ub_->Weights(), 1);
        weightedSum_->Finish(head);
        SetFlag<HardEvent::V_MTE2>(event_);
    }

    // Hands out copies for at most `rows` more rows: all, or those of the first part.
    TOPTHETA_DEVICE inline void Fetch(uint32_t rows, uint32_t issuedTiles)
    {
        if (fetched_ == list_.count) {
            return;
        }
        if (fetched_ == 0) {
            WaitFlag<HardEvent::V_MTE2>(event_);
        }
        if (list_.dense) {
            rows_->LoadTile(values_, list_.chunkBegin, list_.count);
            fetched_ = list_.count;
        } else {
            fetched_ = FetchListed(*ub_, *rows_, values_[fetched_ * headDim_], headDim_, list_, fetched_,
                                   Least(fetched_ + rows, list_.count));
        }
        if (fetched_ == list_.count) {
            SetFlag<HardEvent::MTE2_V>(event_);
            readyAfter_ = issuedTiles;
        } else {
            firstRows_ = fetched_;
            SetFlag<HardEvent::MTE2_V>(kFirstRowsEvent);
        }
    }

    TOPTHETA_DEVICE inline void Add(SumPart part)
    {
        if (Done()) {
            return;
        }
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<float> weights = WeightsOf(*ub_, list_, head);
            if (part != SumPart::kLast) {
                weightedSum_->Begin(weights, list_.count);
            }
            if (firstRows_ > 0) {
                AddRows(head, 0, firstRows_, kFirstRowsEvent);
            }
            AddRows(head, firstRows_, list_.count, event_);
            if (part != SumPart::kFirst) {
                weightedSum_->Finish(head);
            }
        }
        SetFlag<HardEvent::V_MTE2>(event_);
        Begin(RowList());
    }

    // Adds entries of the list, for which `event` says that they have arrived.
    TOPTHETA_DEVICE inline void AddRows(uint32_t head, uint32_t first, uint32_t end, int32_t event)
    {
        if (head == 0) {
            WaitFlag<HardEvent::MTE2_V>(event);
        }
        weightedSum_->Add(values_[first * headDim_], WeightsOf(*ub_, list_, head, first), end - first);
    }

    UbMap* ub_ = nullptr;
    CacheRows<T>* rows_ = nullptr;
    WeightedSum<T>* weightedSum_ = nullptr;
    LocalTensor<T> values_;
    RowList list_;
    int32_t event_ = 0;
    bool inParts_ = false;
    uint32_t headDim_ = 0;
    uint32_t fetched_ = 0;  // rows whose copies are handed out
    uint32_t firstRows_ = 0;  // of them, the first part
    uint32_t readyAfter_ = 0;  // tiles that were asked for before the last copy
};

}  // namespace toptheta
