// From sums to outputs: division, the mean of V for what is discarded, statistics.
#pragma once

#include "compensation.h"
#include "reductions.h"
#include "unit_parameters.h"

namespace toptheta {

struct OutputTensors {
    GM_ADDR attentionOut;
    GM_ADDR lse;
    GM_ADDR kept;
    GM_ADDR valueRows;
    GM_ADDR partOut;
    GM_ADDR partMaximum;
    GM_ADDR partKeptMass;
    GM_ADDR partDiscardedMass;
};

template <typename Types>
class RowOutput {
public:
    using T = typename Types::Query;
    using Visible = VisibleKeys<Types::kTokens>;

    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, const OutputTensors& tensors,
                                     const TopThetaIncrementalAttentionTilingData* scales,
                                     Compensation<Types>* compensation)
    {
        byChannel_ = IsInt8<typename Types::Value>::kValue && scales->valueScales.perToken == 0;
        ub_ = ub;
        tiling_ = tiling;
        compensation_ = compensation;
        out_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(tensors.attentionOut));
        lse_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.lse));
        kept_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(tensors.kept));
        valueRows_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(tensors.valueRows));
        partOut_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.partOut));
        partMaximum_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.partMaximum));
        partKeptMass_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.partKeptMass));
        partDiscardedMass_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.partDiscardedMass));
        SetFlag<HardEvent::MTE3_V>(kEvent);
    }

    // Before V writes what an output copy may still be reading.
    TOPTHETA_DEVICE inline void WaitForCopies() { WaitFlag<HardEvent::MTE3_V>(kEvent); }
    TOPTHETA_DEVICE inline void CopiesIssued() { SetFlag<HardEvent::MTE3_V>(kEvent); }

    // CopiesIssued() ends the outputs of a segment.
    template <typename Parameters>
    TOPTHETA_DEVICE inline void Write(const HeadRange& range, const Visible& visible, const uint32_t* kept,
                                      Parameters& parameters)
    {
        Divide(range.heads, visible, kept, parameters);
        WriteRows(range);
        if (tiling_->withStats || tiling_->partial) {
            WriteStatistics(range, visible, kept);
        }
    }

    TOPTHETA_DEVICE inline void WriteValueRows(uint32_t batch, uint32_t kvHead, uint32_t count)
    {
        WriteCount(valueRows_, static_cast<uint64_t>(batch) * tiling_->numKeyValueHeads + kvHead, count);
    }

    TOPTHETA_DEVICE inline void WriteCount(GlobalTensor<int32_t>& to, uint64_t offset, uint32_t count)
    {
        LocalTensor<int32_t> value = Staged(kStagedValueRows).template ReinterpretCast<int32_t>();
        AscendC::Duplicate(value, static_cast<int32_t>(count), static_cast<int32_t>(kBlockFloats));
        SetFlag<HardEvent::V_MTE3>(kEvent);
        WaitFlag<HardEvent::V_MTE3>(kEvent);
        CopyOut(to, offset, value, 1);
    }

    // A sequence without keys: 0, log-sum-exp and maximum -inf.
    TOPTHETA_DEVICE inline void WriteEmpty(uint32_t batch)
    {
        const uint32_t heads = tiling_->numHeads;
        const uint64_t row = static_cast<uint64_t>(batch) * heads;
        const uint32_t elements = heads * tiling_->headDim;
        WaitForCopies();
        AscendC::Duplicate(ub_->Partials(), 0.0f, static_cast<int32_t>(kPartialBytes / 4));
        AscendC::Duplicate(Infinities(), -kInfinity, static_cast<int32_t>(kInfinities));
        SetFlag<HardEvent::V_MTE3>(kEvent);
        WaitFlag<HardEvent::V_MTE3>(kEvent);
        LocalTensor<int32_t> zeros = ub_->Partials().template ReinterpretCast<int32_t>();
        if (tiling_->partial) {
            Fill(partOut_, row * tiling_->headDim, ub_->Partials(), elements, kPartialBytes / 4);
            Fill(partMaximum_, row, Infinities(), heads, kInfinities);
            Fill(partKeptMass_, row, ub_->Partials(), heads, kPartialBytes / 4);
            Fill(partDiscardedMass_, row, ub_->Partials(), heads, kPartialBytes / 4);
            Fill(kept_, row, zeros, heads, kPartialBytes / 4);
        } else {
            Fill(out_, row * tiling_->headDim, ub_->Partials().template ReinterpretCast<T>(), elements,
                 kPartialBytes / sizeof(T));
        }
        if (tiling_->withStats) {
            Fill(lse_, row, Infinities(), heads, kInfinities);
            Fill(kept_, row, zeros, heads, kPartialBytes / 4);
            Fill(valueRows_, static_cast<uint64_t>(batch) * tiling_->numKeyValueHeads, zeros, tiling_->numKeyValueHeads,
                 kPartialBytes / 4);
        }
        CopiesIssued();
    }

private:
    static constexpr uint32_t kInfinities = 64;
    // staging blocks in the scratch space
    enum Staging : uint32_t { kStagedFloat, kStagedKept, kStagedKeptInt, kStagedValueRows, kStagedMass, kStagedRest };

    TOPTHETA_DEVICE inline LocalTensor<float> Staged(Staging slot) { return ub_->ReduceFirst()[slot * kBlockFloats]; }

    TOPTHETA_DEVICE inline LocalTensor<float> Infinities()
    {
        return ub_->At<float>(ub_->Layout().weights, kInfinities);
    }

    // accumulator / denominator, plus the mean of V by the estimate's share. Sums of int8 V with a scale for each
    // channel become sums of what the rows stand for here, where every sum comes by once.
    template <typename Parameters>
    TOPTHETA_DEVICE inline void Divide(uint32_t heads, const Visible& visible, const uint32_t* kept,
                                       Parameters& parameters)
    {
        const LocalTensor<float> share = ub_->State(kShare);
        PipeBarrier<PIPE_V>();
        WithBlocks<BlockOperation::kDivide>(ub_->Accumulators(tiling_->headDim), ub_->State(kDenominator), heads,
                                            tiling_->headDim);
        if constexpr (IsInt8<typename Types::Value>::kValue) {
            PipeBarrier<PIPE_V>();
            for (uint32_t head = 0; head < heads && byChannel_; head++) {
                const LocalTensor<float> sum = ub_->Accumulator(head, tiling_->headDim);
                AscendC::Mul(sum, sum, parameters.ValueChannels(), static_cast<int32_t>(tiling_->headDim));
            }
        }
        for (uint32_t head = 0; head < heads; head++) {
            // where nothing is discarded the mean may be anything
            if (Has(*tiling_, InputIndex::kValueMean) && kept[head] < visible.Of(head)) {
                AddValueMean(ub_->Accumulator(head, tiling_->headDim), parameters.ValueMean(head),
                             share[head * kBlockFloats]);
            }
        }
    }

    TOPTHETA_DEVICE inline void AddValueMean(const LocalTensor<float>& accumulator, const LocalTensor<float>& valueMean,
                                             const LocalTensor<float>& share)
    {
        LocalTensor<float> work = ub_->Partials();
        PipeBarrier<PIPE_V>();
        WithBlock<BlockOperation::kMultiply>(work, valueMean, share, tiling_->headDim);
        PipeBarrier<PIPE_V>();
        AscendC::Add(accumulator, accumulator, work, static_cast<int32_t>(tiling_->headDim));
    }

    TOPTHETA_DEVICE inline void WriteRows(const HeadRange& range)
    {
        const uint32_t count = range.heads * tiling_->headDim;
        LocalTensor<float> rows = ub_->At<float>(ub_->Layout().accumulator, count);
        LocalTensor<T> narrow = ub_->At<T>(ub_->Layout().weights, count);
        if (!tiling_->partial) {
            PipeBarrier<PIPE_V>();
            AscendC::Cast(narrow, rows, AscendC::RoundMode::CAST_RINT, count);
        }
        SetFlag<HardEvent::V_MTE3>(kEvent);
        WaitFlag<HardEvent::V_MTE3>(kEvent);
        if (tiling_->partial) {
            CopyRows(partOut_, range, rows);
        } else {
            CopyRows(out_, range, narrow);
        }
    }

    template <typename U>
    TOPTHETA_DEVICE inline void CopyRows(GlobalTensor<U>& to, const HeadRange& range, const LocalTensor<U>& from)
    {
        const uint32_t D = tiling_->headDim;
        RowRuns<Types::kTokens> runs(*tiling_, range);
        for (RowRun run; runs.Next(run);) {
            if (run.step == D) {
                CopyOut(to, run.element, from[run.first * D], run.rows * D);
                continue;
            }
            const AscendC::DataCopyExtParams copy(static_cast<uint16_t>(run.rows), D * sizeof(U), 0,
                                                  (run.step - D) * sizeof(U), 0);
            AscendC::DataCopyPad(to[run.element], from[run.first * D], copy);
        }
    }

    TOPTHETA_DEVICE inline void WriteStatistics(const HeadRange& range, const Visible& visible, const uint32_t* kept)
    {
        const uint64_t row = FirstRow(*tiling_, range);
        LocalTensor<float> keptBlocks = ub_->State(kKeptCount);
        for (uint32_t head = 0; head < range.heads; head++) {
            AscendC::Duplicate(keptBlocks[head * kBlockFloats], static_cast<float>(kept[head]),
                               static_cast<int32_t>(kBlockFloats));
        }
        const LocalTensor<float> lse = ub_->State(kDenominator);
        compensation_->MakeLse(lse);
        PipeBarrier<PIPE_V>();
        Gather(kStagedKept, keptBlocks, range.heads);
        Gather(kStagedFloat, tiling_->partial ? ub_->State(kMaximum) : lse, range.heads);
        Gather(kStagedMass, ub_->State(kKeptMass), range.heads);
        Gather(kStagedRest, ub_->State(kEstimate), range.heads);
        PipeBarrier<PIPE_V>();
        MarkUnseen(Staged(kStagedFloat), range.heads, visible);
        LocalTensor<int32_t> keptInts = Staged(kStagedKeptInt).template ReinterpretCast<int32_t>();
        AscendC::Cast(keptInts, Staged(kStagedKept), AscendC::RoundMode::CAST_RINT, range.heads);
        SetFlag<HardEvent::V_MTE3>(kEvent);
        WaitFlag<HardEvent::V_MTE3>(kEvent);
        CopyOut(kept_, row, keptInts, range.heads);
        if (tiling_->partial) {
            CopyOut(partMaximum_, row, Staged(kStagedFloat), range.heads);
            CopyOut(partKeptMass_, row, Staged(kStagedMass), range.heads);
            CopyOut(partDiscardedMass_, row, Staged(kStagedRest), range.heads);
        } else {
            CopyOut(lse_, row, Staged(kStagedFloat), range.heads);
        }
    }

    // The log-sum-exp of rows that see no keys, last of all, so that no other instruction meets it.
    TOPTHETA_DEVICE inline void MarkUnseen(const LocalTensor<float>& lse, uint32_t heads, const Visible& visible)
    {
        if constexpr (Types::kTokens) {
            uint64_t mask[2] = {0, 0};
            for (uint32_t head = 0; head < heads; head++) {
                mask[0] |= static_cast<uint64_t>(visible.Of(head) == 0) << head;
            }
            if (mask[0] != 0) {
                AscendC::Duplicate(lse, -kInfinity, mask, 1, 1, kBlockFloats);
            }
        }
    }

    // One value of each head's block, side by side.
    TOPTHETA_DEVICE inline void Gather(Staging slot, const LocalTensor<float>& blocks, uint32_t heads)
    {
        AscendC::WholeReduceMax(Staged(slot), blocks, 1, static_cast<int32_t>(heads), 1, 1, 1,
                                AscendC::ReduceOrder::ORDER_ONLY_VALUE);
    }

    template <typename U>
    TOPTHETA_DEVICE inline void CopyOut(GlobalTensor<U>& to, uint64_t offset, const LocalTensor<U>& from,
                                        uint32_t count)
    {
        AscendC::DataCopyPad(to[offset], from, AscendC::DataCopyExtParams(1, count * sizeof(U), 0, 0, 0));
    }

    template <typename U>
    TOPTHETA_DEVICE inline void Fill(GlobalTensor<U>& to, uint64_t offset, const LocalTensor<U>& from, uint32_t count,
                                     uint32_t most)
    {
        for (uint32_t done = 0; done < count; done += most) {
            CopyOut(to, offset + done, from, Least(most, count - done));
        }
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    Compensation<Types>* compensation_ = nullptr;
    bool byChannel_ = false;  // int8 V has a scale for each channel
    GlobalTensor<T> out_;
    GlobalTensor<float> lse_;
    GlobalTensor<int32_t> kept_;
    GlobalTensor<int32_t> valueRows_;
    GlobalTensor<float> partOut_;
    GlobalTensor<float> partMaximum_;
    GlobalTensor<float> partKeptMass_;
    GlobalTensor<float> partDiscardedMass_;
};

}  // namespace toptheta
