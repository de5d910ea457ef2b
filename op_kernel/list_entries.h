// Which entries of a list each head keeps, where the list lies apart (RowList).
#pragma once

#include "chunk.h"
#include "reductions.h"

namespace toptheta {

class ListEntries {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub) { ub_ = ub; }

    // The mask of each head, in place of those of the chunk, and the counts on their way to the scalar unit. Weights
    // are complete but for a mark below 0 on what a head does not keep, which becomes 0.
    TOPTHETA_DEVICE inline void Mask(const RowList& list)
    {
        const LocalTensor<float> weights = WeightsOf(*ub_, list, 0);
        const uint32_t all = ub_->Heads() * list.weightPitch;
        AscendC::CompareScalar(ub_->Mask(0, ub_->Heads()), weights, -0.5f, AscendC::CMPMODE::GT, all);
        AscendC::Maxs(weights, weights, 0.0f, static_cast<int32_t>(all));
        AscendC::Cast(Counts(), ub_->PerHead()[kSecondResult], AscendC::RoundMode::CAST_RINT,
                      static_cast<int32_t>(kBlockFloats));
        SetFlag<HardEvent::V_S>(kEvent);
    }

    // Waits for the counts.
    TOPTHETA_DEVICE inline void Read()
    {
        WaitFlag<HardEvent::V_S>(kEvent);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            counts_[head] = static_cast<uint32_t>(Counts().GetValue(head));
        }
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
    }

    TOPTHETA_DEVICE inline uint32_t Of(uint32_t head) const { return counts_[head]; }

private:
    TOPTHETA_DEVICE inline LocalTensor<int32_t> Counts()
    {
        return ub_->ReduceFirst().template ReinterpretCast<int32_t>();
    }

    UbMap* ub_ = nullptr;
    uint32_t counts_[kMaxHeadBlock] = {};
};

}  // namespace toptheta
