// From masses to what the sums are divided by: the estimate of the discarded mass (SDC) and its share (VMC), the sink,
// the log-sum-exp.
#pragma once

#include "query_tokens.h"
#include "weighted_sum.h"

namespace toptheta {

template <typename Types>
class Compensation {
public:
    // The keys that each head sees.
    using Visible = VisibleKeys<Types::kTokens>;

    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling)
    {
        ub_ = ub;
        tiling_ = tiling;
    }

    // A head that kept nothing has its largest element in the accumulator; its exponential is 1.
    TOPTHETA_DEVICE inline void CountStandIn(uint32_t head)
    {
        if (!tiling_->partial) {
            PipeBarrier<PIPE_V>();
            AscendC::Duplicate(ub_->State(kKeptMass)[head * kBlockFloats], 1.0f, static_cast<int32_t>(kBlockFloats));
        }
    }

    // State kEstimate, kDenominator and kShare, from the masses: `kept[h]` of the visible elements are kept, a stand-in
    // included. The sums need not be complete.
    TOPTHETA_DEVICE inline void PrepareDivision(uint32_t heads, const Visible& visible, const uint32_t* kept)
    {
        MakeEstimate(heads, visible, kept);
        MakeDenominator(heads, visible, kept);
    }

    // log-sum-exp of each row from its maximum and total mass, and the sink
    TOPTHETA_DEVICE inline void MakeLse(const LocalTensor<float>& lse)
    {
        const int32_t count = ub_->StateCount();
        AscendC::Ln(lse, ub_->State(kTotalMass), count);
        PipeBarrier<PIPE_V>();
        AscendC::Add(lse, lse, ub_->State(kMaximum), count);
        if (Has(*tiling_, InputIndex::kLearnableSink)) {
            AddSink(lse, count);
        }
    }

private:
    // State kEstimate: the discarded mass by the SDC mode, 0 where nothing is discarded.
    TOPTHETA_DEVICE inline void MakeEstimate(uint32_t heads, const Visible& visible, const uint32_t* kept)
    {
        const int32_t count = heads * kBlockFloats;
        LocalTensor<float> estimate = ub_->State(kEstimate);
        PipeBarrier<PIPE_V>();
        if (tiling_->sdc == kSdcNone && !tiling_->partial) {
            AscendC::Duplicate(estimate, 0.0f, count);
            return;
        }
        if (tiling_->sdc == kSdcOffline) {
            AscendC::Adds(estimate, ub_->State(kOfflineMass), 0.0f, count);
        } else if (tiling_->sdc == kSdcExpThreshold) {
            AscendC::Min(estimate, ub_->State(kLimit), ub_->State(kMaximum), count);
            PipeBarrier<PIPE_V>();
            AscendC::Sub(estimate, estimate, ub_->State(kMaximum), count);
            PipeBarrier<PIPE_V>();
            AscendC::Exp(estimate, estimate, count);
        } else {
            AscendC::Sub(estimate, ub_->State(kTotalMass), ub_->State(kKeptMass), count);
            PipeBarrier<PIPE_V>();
            AscendC::Maxs(estimate, estimate, 0.0f, count);
        }
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < heads; head++) {
            ScaleEstimate(estimate[head * kBlockFloats], visible.Of(head) - kept[head]);
        }
    }

    TOPTHETA_DEVICE inline void ScaleEstimate(const LocalTensor<float>& estimate, uint32_t discarded)
    {
        if (discarded == 0) {
            AscendC::Duplicate(estimate, 0.0f, static_cast<int32_t>(kBlockFloats));
        } else if (tiling_->sdc == kSdcExpThreshold) {
            AscendC::Muls(estimate, estimate, tiling_->sdcGamma * static_cast<float>(discarded),
                          static_cast<int32_t>(kBlockFloats));
        }
    }

    // R + estimate + sink, and the share of the estimate for VMC; a part divides by R alone.
    TOPTHETA_DEVICE inline void MakeDenominator(uint32_t heads, const Visible& visible, const uint32_t* kept)
    {
        const int32_t count = heads * kBlockFloats;
        LocalTensor<float> denominator = ub_->State(kDenominator);
        PipeBarrier<PIPE_V>();
        if (tiling_->partial) {
            AscendC::Adds(denominator, ub_->State(kKeptMass), 0.0f, count);
            PipeBarrier<PIPE_V>();
            for (uint32_t head = 0; head < heads; head++) {
                if (kept[head] == 0) {
                    AscendC::Duplicate(denominator[head * kBlockFloats], 1.0f, static_cast<int32_t>(kBlockFloats));
                }
            }
        } else {
            AscendC::Add(denominator, ub_->State(kKeptMass), ub_->State(kEstimate), count);
            if (Has(*tiling_, InputIndex::kLearnableSink)) {
                AddSinkMass(denominator, count);
            }
            FillUnseen(denominator, heads, visible);
        }
        PipeBarrier<PIPE_V>();
        if (Has(*tiling_, InputIndex::kValueMean)) {
            AscendC::Div(ub_->State(kShare), ub_->State(kEstimate), denominator, count);
        }
        if (WeightScale<typename Types::Value>::kValue != 1.0f) {
            AscendC::Muls(denominator, denominator, WeightScale<typename Types::Value>::kValue, count);
        }
    }

    // The denominator of rows that see no keys, whose accumulators are 0.
    TOPTHETA_DEVICE inline void FillUnseen(const LocalTensor<float>& blocks, uint32_t heads, const Visible& visible)
    {
        if constexpr (Types::kTokens) {
            PipeBarrier<PIPE_V>();
            for (uint32_t head = 0; head < heads; head++) {
                if (visible.Of(head) == 0) {
                    AscendC::Duplicate(blocks[head * kBlockFloats], 1.0f, static_cast<int32_t>(kBlockFloats));
                }
            }
        }
    }

    // The mass of the sink, which has no V row. Where it overflows, the output is 0.
    TOPTHETA_DEVICE inline void AddSinkMass(const LocalTensor<float>& denominator, int32_t count)
    {
        const LocalTensor<float> mass = ub_->State(kSinkMass);
        AscendC::Sub(mass, ub_->State(kSink), ub_->State(kMaximum), count);
        PipeBarrier<PIPE_V>();
        AscendC::Exp(mass, mass, count);
        PipeBarrier<PIPE_V>();
        AscendC::Add(denominator, denominator, mass, count);
    }

    // lse = ln(exp(lse) + exp(sink)), by the larger of the two, so that nothing overflows
    TOPTHETA_DEVICE inline void AddSink(const LocalTensor<float>& lse, int32_t count)
    {
        const LocalTensor<float> larger = ub_->State(kNewMaximum);
        const LocalTensor<float> smaller = ub_->State(kSinkMass);
        PipeBarrier<PIPE_V>();
        AscendC::Max(larger, lse, ub_->State(kSink), count);
        AscendC::Min(smaller, lse, ub_->State(kSink), count);
        PipeBarrier<PIPE_V>();
        AscendC::Sub(smaller, smaller, larger, count);
        PipeBarrier<PIPE_V>();
        AscendC::Exp(smaller, smaller, count);
        PipeBarrier<PIPE_V>();
        AscendC::Adds(smaller, smaller, 1.0f, count);
        PipeBarrier<PIPE_V>();
        AscendC::Ln(smaller, smaller, count);
        PipeBarrier<PIPE_V>();
        AscendC::Add(lse, larger, smaller, count);
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
};

}  // namespace toptheta
