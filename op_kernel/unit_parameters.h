// Query, thresholds and the other per-head inputs of a unit.
#pragma once

#include "chunk.h"
#include "int8_query.h"
#include "query_tokens.h"

namespace toptheta {

struct ParameterTensors {
    GM_ADDR query;
    GM_ADDR threshold;
    GM_ADDR discardedMass;
    GM_ADDR valueMean;
    GM_ADDR learnableSink;
    GM_ADDR rowLse;
};

template <typename Types, Placement kPlacement>
class UnitParameters {
public:
    using T = typename Types::Query;
    using Key = typename Types::Key;
    using Value = typename Types::Value;

    // `withQuery`: whether this core multiplies K rows itself.
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, const ParameterTensors& tensors,
                                     bool withQuery)
    {
        ub_ = ub;
        tiling_ = tiling;
        withQuery_ = withQuery;
        query_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(tensors.query));
        threshold_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.threshold));
        discardedMass_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.discardedMass));
        valueMean_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.valueMean));
        learnableSink_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.learnableSink));
        rowLse_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(tensors.rowLse));
    }

    // Scales of int8 caches.
    TOPTHETA_DEVICE inline void InitScales(const TopThetaIncrementalAttentionTilingData& scales, GM_ADDR key,
                                           GM_ADDR value)
    {
        keyByChannel_ = scales.keyScales.perToken == 0;
        valueByChannel_ = IsInt8<Value>::kValue && scales.valueScales.perToken == 0;
        keyScale_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(key));
        valueScale_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(value));
    }

    // Starts the copies, while the vector unit may still finish the segment before; K tiles are asked for behind them.
    // `combining`: the scores have been tested already.
    TOPTHETA_DEVICE inline void Copy(const HeadRange& range, bool combining = false)
    {
        const uint32_t D = tiling_->headDim;
        const uint64_t row = FirstRow(*tiling_, range);
        parity_ ^= 1;
        SetFlag<HardEvent::V_MTE2>(kParameterEvent);
        WaitFlag<HardEvent::V_MTE2>(kParameterEvent);
        if (withQuery_ && !combining) {
            AscendC::DataCopyPad(RawQuery(range.heads), query_[row * D],
                                 AscendC::DataCopyExtParams(1, range.heads * D * sizeof(T), 0, 0, 0),
                                 AscendC::DataCopyPadExtParams<T>(false, 0, 0, T()));
            if (keyByChannel_) {
                CopyFloats(ub_->KeyChannels(D), keyScale_, range.kvHead * D, D);
            }
        }
        if (valueByChannel_) {
            CopyFloats(ub_->ValueChannels(D, parity_), valueScale_, range.kvHead * D, D);
        }
        if (NeedsLimits(combining)) {
            CopyThreshold(range);
        }
        if (tiling_->sdc == kSdcOffline) {
            CopyPerHead(kMassPlace, discardedMass_, row, range.heads);
        }
        if (HasSink()) {
            CopyOfHeads(kSinkPlace, learnableSink_, 0, range);
        }
        if (GivenLse() && NeedsLimits(combining)) {
            CopyPerHead(kLsePlace, rowLse_, row, range.heads);
        }
        if (Has(*tiling_, InputIndex::kValueMean)) {
            CopyValueMean(range);
        }
        SetFlag<HardEvent::MTE2_V>(kParameterEvent);
    }

    // Brings what was copied into place: one block per head; of the queries in float32 what the product needs.
    TOPTHETA_DEVICE inline void Unpack(const HeadRange& range, bool combining = false)
    {
        unpackedParity_ = parity_;
        WaitFlag<HardEvent::MTE2_V>(kParameterEvent);
        if (withQuery_ && !combining) {
            WidenQuery(range.heads);
        }
        if (NeedsLimits(combining)) {
            UnpackBounded(kThreshold, kThresholdPlace, range, IsOfHeads(tiling_->thresholdAxes), kLeastThreshold);
        }
        if (tiling_->sdc == kSdcOffline) {
            UnpackPerHead(kOfflineMass, kMassPlace);
        }
        if (HasSink()) {
            UnpackBounded(kSink, kSinkPlace, range, Types::kTokens, kLowest);
        }
        if (GivenLse() && NeedsLimits(combining)) {
            UnpackBounded(kRowLse, kLsePlace, range, false, kLowest);
        }
    }

    // State kLimit: the score that an element must exceed. In post-softmax it is ln(theta) + log-sum-exp, and the
    // logarithm of a threshold <= 0 stands for -inf.
    TOPTHETA_DEVICE inline void MakeLimits()
    {
        const int32_t count = ub_->StateCount();
        LocalTensor<float> limit = ub_->State(kLimit);
        PipeBarrier<PIPE_V>();
        AscendC::Mins(limit, ub_->State(kThreshold), kHighest, count);
        if constexpr (kPlacement == kPostSoftmax) {
            PipeBarrier<PIPE_V>();
            AscendC::Ln(limit, limit, count);
            PipeBarrier<PIPE_V>();
            AscendC::Add(limit, limit, ub_->State(kRowLse), count);
        }
        SetFlag<HardEvent::V_S>(kEvent);
        WaitFlag<HardEvent::V_S>(kEvent);
    }

    TOPTHETA_DEVICE inline float Limit(uint32_t head)
    {
        const float lowest = LowestLimit<Key>(tiling_->scaleValue);
        if constexpr (kPlacement == kPostSoftmax) {
            if (ub_->State(kThreshold).GetValue(head * kBlockFloats) <= kLeastThreshold) {
                return lowest;
            }
        }
        const float limit = ub_->State(kLimit).GetValue(head * kBlockFloats);
        return limit > lowest ? limit : lowest;
    }

    // Scales of V by channel, if there are any.
    TOPTHETA_DEVICE inline LocalTensor<float> ValueChannels()
    {
        return ub_->ValueChannels(tiling_->headDim, unpackedParity_);
    }
    // The mean V row of the keys that a query row sees.
    TOPTHETA_DEVICE inline LocalTensor<float> ValueMean(uint32_t head)
    {
        const uint32_t token = Types::kTokens ? head % ub_->Layout().blockTokens : 0;
        return ub_->ValueMean(tiling_->headDim, unpackedParity_, token);
    }

private:
    // among the blocks of UbMap::Parameters; parts alone are given a log-sum-exp, and no sink
    enum Place : uint32_t { kThresholdPlace, kMassPlace, kLsePlace, kPlaces, kSinkPlace = kLsePlace };
    static_assert(kPlaces <= kParameterBlocks, "every input with a value for each head has a block");
    // Thresholds up to it, -inf among them, keep everything. Post-softmax it is the least number that is sure to have a
    // logarithm, since a core may take smaller ones for 0.
    static constexpr float kLeastThreshold = kPlacement == kPostSoftmax ? 1.175494351e-38f : kLowest;

    // After the test, only the estimate from thresholds wants them.
    TOPTHETA_DEVICE inline bool NeedsLimits(bool combining) const
    {
        return !combining || tiling_->sdc == kSdcExpThreshold;
    }

    TOPTHETA_DEVICE inline bool GivenLse() const
    {
        return kPlacement == kPostSoftmax && Has(*tiling_, InputIndex::kRowLse);
    }

    TOPTHETA_DEVICE inline bool HasSink() const { return Has(*tiling_, InputIndex::kLearnableSink); }

    TOPTHETA_DEVICE inline LocalTensor<T> RawQuery(uint32_t heads)
    {
        const uint32_t count = heads * tiling_->headDim;
        if constexpr (IsBfloat16<T>::kValue || IsInt8<Key>::kValue) {
            return ub_->template RawQuery<T>(count);
        } else {
            return ub_->template Query<T>(count);
        }
    }

    TOPTHETA_DEVICE inline void WidenQuery(uint32_t heads)
    {
        const uint32_t count = heads * tiling_->headDim;
        if constexpr (IsInt8<Key>::kValue) {
            FoldScales(*ub_, RawQuery(heads), *tiling_, heads, keyByChannel_);
        } else if constexpr (IsBfloat16<T>::kValue) {
            AscendC::Cast(ub_->template Query<float>(count), RawQuery(heads), AscendC::RoundMode::CAST_NONE, count);
        } else {
            const uint8_t fromHead = tiling_->headDim / kBlockHalves;
            AscendC::Cast(ub_->FirstColumns(0, heads), RawQuery(heads), AscendC::RoundMode::CAST_NONE, kLanes,
                          static_cast<uint8_t>(heads), AscendC::UnaryRepeatParams(1, 0, 8, fromHead));
        }
    }

    TOPTHETA_DEVICE inline void CopyFloats(const LocalTensor<float>& to, const GlobalTensor<float>& from,
                                           uint64_t offset, uint32_t count)
    {
        AscendC::DataCopyPad(to, from[offset], AscendC::DataCopyExtParams(1, count * sizeof(float), 0, 0, 0),
                             AscendC::DataCopyPadExtParams<float>(false, 0, 0, 0));
    }

    // Whether a tensor has a number for each head, of which all tokens take the same.
    TOPTHETA_DEVICE inline bool IsOfHeads(uint32_t axes) const { return Types::kTokens && axes < 3; }

    TOPTHETA_DEVICE inline void CopyThreshold(const HeadRange& range)
    {
        if (Types::kTokens && !IsOfHeads(tiling_->thresholdAxes)) {
            CopyPerHead(kThresholdPlace, threshold_, FirstRow(*tiling_, range), range.heads);
            return;
        }
        const uint32_t heads = Types::kTokens ? tiling_->numHeads / tiling_->queryTokens : tiling_->numHeads;
        CopyOfHeads(kThresholdPlace, threshold_,
                    tiling_->thresholdAxes > 1 ? static_cast<uint64_t>(range.batch) * heads : 0, range);
    }

    // The numbers of the heads that the rows of a range belong to; those of a sequence begin at `begin`.
    TOPTHETA_DEVICE inline void CopyOfHeads(Place place, const GlobalTensor<float>& from, uint64_t begin,
                                            const HeadRange& range)
    {
        uint32_t first = range.firstHead;
        uint32_t heads = range.heads;
        if constexpr (Types::kTokens) {
            first /= tiling_->queryTokens;
            heads = (range.firstHead + range.heads - 1) / tiling_->queryTokens - first + 1;
        }
        CopyPerHead(place, from, begin + first, heads);
    }

    // One for each token of the block, in the places that rows of the token come by.
    TOPTHETA_DEVICE inline void CopyValueMean(const HeadRange& range)
    {
        const uint32_t D = tiling_->headDim;
        const uint64_t group = static_cast<uint64_t>(range.batch) * tiling_->numKeyValueHeads + range.kvHead;
        if constexpr (!Types::kTokens) {
            CopyFloats(ub_->ValueMean(D, parity_), valueMean_, group * D, D);
        } else {
            const uint32_t tokens = tiling_->queryTokens;
            for (uint32_t place = 0; place < Least(range.heads, ub_->Layout().blockTokens); place++) {
                const uint32_t token = (range.firstHead + place) % tokens;
                CopyFloats(ub_->ValueMean(D, parity_, place), valueMean_, (group * tokens + token) * D, D);
            }
        }
    }

    // Eight values per tensor, those past the last head 0.
    TOPTHETA_DEVICE inline void CopyPerHead(Place place, const GlobalTensor<float>& from, uint64_t offset,
                                            uint32_t heads)
    {
        AscendC::DataCopyPad(
            ub_->Parameters()[place * kBlockFloats], from[offset],
            AscendC::DataCopyExtParams(1, heads * sizeof(float), 0, 0, 0),
            AscendC::DataCopyPadExtParams<float>(true, 0, static_cast<uint8_t>(kBlockFloats - heads), 0.0f));
    }

    // A block of each number that was copied to a place.
    TOPTHETA_DEVICE inline LocalTensor<float> BlocksOf(Place place)
    {
        LocalTensor<float> blocks = ub_->PerHeadBlocks();
        PipeBarrier<PIPE_V>();
        AscendC::Brcb(blocks, ub_->Parameters()[place * kBlockFloats], 1, AscendC::BrcbRepeatParams(1, 8));
        PipeBarrier<PIPE_V>();
        return blocks;
    }

    TOPTHETA_DEVICE inline void UnpackPerHead(StateQuantity quantity, Place place)
    {
        const LocalTensor<float> blocks = BlocksOf(place);
        AscendC::Adds(ub_->State(quantity), blocks, 0.0f, static_cast<int32_t>(ub_->StateCount()));
    }

    // Numbers that may be -inf: what is below `least` becomes that. `ofHeads`: each row takes the block of its head.
    TOPTHETA_DEVICE inline void UnpackBounded(StateQuantity quantity, Place place, const HeadRange& range, bool ofHeads,
                                              float least)
    {
        const LocalTensor<float> blocks = BlocksOf(place);
        if constexpr (Types::kTokens) {
            const uint32_t tokens = tiling_->queryTokens;
            const uint32_t first = range.firstHead / tokens;
            for (uint32_t row = 0; ofHeads && row < range.heads;) {
                const uint32_t head = (range.firstHead + row) / tokens;
                const uint32_t rows = Least((head + 1) * tokens - range.firstHead - row, range.heads - row);
                AscendC::Maxs(ub_->State(quantity)[row * kBlockFloats], blocks[(head - first) * kBlockFloats], least,
                              kBlockFloats, static_cast<uint8_t>(rows), AscendC::UnaryRepeatParams(1, 1, 1, 0));
                row += rows;
            }
        }
        if (!ofHeads) {
            AscendC::Maxs(ub_->State(quantity), blocks, least, static_cast<int32_t>(ub_->StateCount()));
        }
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    GlobalTensor<T> query_;
    GlobalTensor<float> keyScale_;
    GlobalTensor<float> valueScale_;
    GlobalTensor<float> threshold_;
    GlobalTensor<float> discardedMass_;
    GlobalTensor<float> valueMean_;
    GlobalTensor<float> learnableSink_;
    GlobalTensor<float> rowLse_;
    bool withQuery_ = true;
    bool keyByChannel_ = false;    // int8 K has a scale for each channel
    bool valueByChannel_ = false;
    uint32_t parity_ = 0;          // the mean V row copied last
    uint32_t unpackedParity_ = 0;  // that of the segment at work
};

}  // namespace toptheta
