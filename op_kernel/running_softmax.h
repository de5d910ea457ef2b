// The running softmax over the chunks of a segment: maximum, masses, and the weights of the rows on a list.
//
// All running values stay in the Unified Buffer, since the core has no scalar exponential.
#pragma once

#include "list_entries.h"
#include "reductions.h"
#include "weighted_sum.h"

namespace toptheta {

template <typename Types>
class RunningSoftmax {
public:
    using Key = typename Types::Key;
    using Value = typename Types::Value;

    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim, ListEntries* entries)
    {
        ub_ = ub;
        headDim_ = headDim;
        entries_ = entries;
    }

    // What stays in UB from the first segment to the last.
    TOPTHETA_DEVICE inline void Prepare()
    {
        AscendC::Duplicate(ub_->PerHead(), 0.0f, static_cast<int32_t>(2 * kBlockFloats));
        AscendC::Duplicate(ub_->Ones(), 1.0f, static_cast<int32_t>(kBlockFloats));
    }

    // Forgets all scores and V rows so far.
    TOPTHETA_DEVICE inline void Begin()
    {
        const LocalTensor<float> masses = ub_->Masses(3);
        AscendC::Duplicate(masses, 0.0f, static_cast<int32_t>(masses.GetSize()));
        AscendC::Duplicate(ub_->Accumulators(headDim_), 0.0f, ub_->Heads() * headDim_);
        AscendC::Duplicate(ub_->State(kMaximum), kLowest, ub_->StateCount());
    }

    // Of the V rows of the next chunk.
    TOPTHETA_DEVICE inline void SetScales(const ChunkScales& scales) { scales_ = scales; }

    // Running maximum, and exp(old - new), which rescales the masses and, by RescaleAccumulators, the sums of V rows.
    TOPTHETA_DEVICE inline void UpdateMaximum(const Chunk& chunk)
    {
        if (IsJoint(*ub_, chunk.scoreRow)) {
            const uint32_t pitch = PitchOf(*ub_, chunk);
            ReduceRows<Reduction::kMax>(*ub_, ub_->Scores(0, chunk.scoreRow, ub_->Heads() * pitch), pitch,
                                        kFirstResult);
        } else {
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                ReduceRow<Reduction::kMax>(*ub_, ScoresOf(*ub_, head, chunk), LanesOf(*ub_, chunk), head);
            }
        }
        const LocalTensor<float> blocks = SpreadPerHead(*ub_);
        const int32_t count = ub_->StateCount();
        AscendC::Max(ub_->State(kNewMaximum), ub_->State(kMaximum), blocks, count);
        PipeBarrier<PIPE_V>();
        AscendC::Sub(ub_->State(kCorrection), ub_->State(kMaximum), ub_->State(kNewMaximum), count);
        PipeBarrier<PIPE_V>();
        AscendC::Exp(ub_->State(kCorrection), ub_->State(kCorrection), count);
        AscendC::Adds(ub_->State(kMaximum), ub_->State(kNewMaximum), 0.0f, count);
        PipeBarrier<PIPE_V>();
        const LocalTensor<float> masses = ub_->Masses();
        const uint8_t stride = ub_->StateStride();
        AscendC::Mul(masses, masses, ub_->State(kCorrection), count, 2,
                     AscendC::BinaryRepeatParams(1, 1, 1, stride, stride, 0));
    }

    TOPTHETA_DEVICE inline void RescaleAccumulators()
    {
        PipeBarrier<PIPE_V>();
        WithBlocks<BlockOperation::kMultiply>(ub_->Accumulators(headDim_), ub_->State(kCorrection), ub_->Heads(),
                                              headDim_);
    }

    // Weights of a list that were made before the last UpdateMaximum. A list has been added since.
    TOPTHETA_DEVICE inline void RescaleWeights(const RowList& list)
    {
        WithBlocks<BlockOperation::kMultiply>(WeightsOf(*ub_, list, 0), ub_->State(kCorrection), ub_->Heads(),
                                              list.weightPitch);
    }

    // Sums of a chunk: `total` for exp(score - maximum) over all its keys, and the weights of the list, which are
    // exp(score - maximum) for a head that keeps the row and 0 for one that does not.
    TOPTHETA_DEVICE inline void WeighChunk(const Chunk& chunk, const RowList& list, bool total)
    {
        if (total || list.count > 0) {
            Exponentiate(chunk);
        }
        if (total) {
            ReduceRows<Reduction::kSum>(*ub_, ub_->Partials(), PitchOf(*ub_, chunk), kFirstResult);
        }
        if (list.count > 0) {
            MakeWeights(chunk, list);
        }
        AddMasses(total, list.count > 0);
    }

    // First phase of post-softmax: the total alone.
    TOPTHETA_DEVICE inline void AddTotal(const Chunk& chunk)
    {
        Exponentiate(chunk);
        ReduceRows<Reduction::kSum>(*ub_, ub_->Partials(), PitchOf(*ub_, chunk), kFirstResult);
        AddMasses(true, false);
    }

private:
    // partials[head][lane] = exp(score - maximum)
    TOPTHETA_DEVICE inline void Exponentiate(const Chunk& chunk)
    {
        const uint32_t pitch = PitchOf(*ub_, chunk);
        const uint32_t lanes = LanesOf(*ub_, chunk);
        const int32_t all = static_cast<int32_t>(ub_->Heads() * pitch);
        LocalTensor<float> work = ub_->Partials();
        if (lanes < pitch) {
            AscendC::Duplicate(work, kLowest, all);
        }
        PipeBarrier<PIPE_V>();
        if (IsInt8<Key>::kValue && pitch == kJointRow && IsJoint(*ub_, chunk.scoreRow)) {
            AscendC::Sub(work, ub_->Scores(0, chunk.scoreRow, all), BlocksOfRows(*ub_, ub_->State(kMaximum)), kLanes,
                         static_cast<uint8_t>(all / kLanes), BlockForEachRepeat());
        } else {
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                SubtractBlock(work[head * pitch], ScoresOf(*ub_, head, chunk),
                              ub_->State(kMaximum)[head * kBlockFloats], lanes);
            }
        }
        PipeBarrier<PIPE_V>();
        AscendC::Exp(work, work, all);
    }

    // weights[head][entry] = exponential of a listed row that the head keeps, 0 of one that it does not
    TOPTHETA_DEVICE inline void MakeWeights(const Chunk& chunk, const RowList& list)
    {
        const LocalTensor<float> weights = WeightsOf(*ub_, list, 0);
        const int32_t count = static_cast<int32_t>(ub_->Heads() * list.weightPitch);
        PickWeights(chunk, list);
        if (ub_->Heads() > 1) {
            CountKept(chunk);
        }
        if (list.apart) {
            entries_->Mask(list);
        }
        ReduceRows<Reduction::kSum>(*ub_, weights, list.weightPitch, kSecondResult);
        if (WeightScale<Value>::kValue != 1.0f) {
            AscendC::Muls(weights, weights, WeightScale<Value>::kValue, count);
        }
        if constexpr (IsInt8<Value>::kValue) {
            if (scales_.perRow) {
                ScaleWeights(chunk, list);
            }
        }
    }

    TOPTHETA_DEVICE inline void PickWeights(const Chunk& chunk, const RowList& list)
    {
        const uint32_t pitch = PitchOf(*ub_, chunk);
        const float unkept = list.apart ? -1.0f : 0.0f;
        LocalTensor<float> work = ub_->Partials();
        if (list.dense || ub_->Heads() > 1) {
            PipeBarrier<PIPE_V>();
            AscendC::Select(list.dense ? WeightsOf(*ub_, list, 0) : work, ub_->Mask(0, ub_->Heads()), work, unkept,
                            AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, ub_->Heads() * pitch);
        }
        if (list.dense) {
            return;
        }
        if (list.apart) {
            AscendC::Duplicate(WeightsOf(*ub_, list, 0), unkept, static_cast<int32_t>(ub_->Heads() * list.weightPitch));
        }
        PipeBarrier<PIPE_V>();
        uint64_t unused = 0;
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            AscendC::GatherMask(WeightsOf(*ub_, list, head), work[head * pitch],
                                ub_->AnyMask().template ReinterpretCast<uint32_t>(), true, AlignUp(chunk.rows, kLanes),
                                AscendC::GatherMaskParams(1, 1, 8, 0), unused);
        }
        PipeBarrier<PIPE_V>();
        FillTails(WeightsOf(*ub_, list, 0), ub_->Heads(), list.weightPitch, list.count, unkept);
    }

    // Where several heads share a list: how many of it each of them keeps.
    TOPTHETA_DEVICE inline void CountKept(const Chunk& chunk)
    {
        const uint32_t pitch = PitchOf(*ub_, chunk);
        LocalTensor<float> work = ub_->Partials();
        AscendC::Select(work, ub_->Mask(0, ub_->Heads()), ub_->Ones(), 0.0f, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE,
                        kLanes, static_cast<uint8_t>(ub_->Heads() * pitch / kLanes),
                        AscendC::BinaryRepeatParams(1, 0, 0, 8, 0, 0));
        ReduceRows<Reduction::kSum>(*ub_, work, pitch, kSecondResult);
        const LocalTensor<float> blocks = SpreadPerHead(*ub_, kSecondResult);
        AscendC::Add(ub_->State(kKeptCount), ub_->State(kKeptCount), blocks, static_cast<int32_t>(ub_->StateCount()));
    }

    // weights *= scales of the listed V rows. The masses have been added up; the work rows are free.
    TOPTHETA_DEVICE inline void ScaleWeights(const Chunk& chunk, const RowList& list)
    {
        const LocalTensor<float> scales = ub_->Partials();
        const uint32_t ahead = scales_.Ahead(ub_->Layout(), chunk.rows);
        AscendC::Adds(scales, ub_->ValueScales()[scales_.at], 0.0f, static_cast<int32_t>(ahead));
        if (ahead < chunk.rows) {
            AscendC::Adds(scales[ahead], ub_->ValueScales(), 0.0f, static_cast<int32_t>(chunk.rows - ahead));
        }
        PipeBarrier<PIPE_V>();
        if (!list.dense) {
            uint64_t unused = 0;
            AscendC::GatherMask(scales, scales, ub_->AnyMask().template ReinterpretCast<uint32_t>(), true, chunk.rows,
                                AscendC::GatherMaskParams(1, 1, 8, 0), unused);
            PipeBarrier<PIPE_V>();
        }
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<float> weights = WeightsOf(*ub_, list, head);
            AscendC::Mul(weights, weights, scales, static_cast<int32_t>(list.count));
        }
    }

    // total and kept mass += the sums of this chunk
    TOPTHETA_DEVICE inline void AddMasses(bool total, bool kept)
    {
        const uint8_t sums = (total ? 1 : 0) + (kept ? 1 : 0);
        if (sums == 0) {
            return;
        }
        const LocalTensor<float> blocks = SpreadPerHead(*ub_, total ? kFirstResult : kSecondResult, sums);
        const LocalTensor<float> masses = total ? ub_->Masses() : ub_->State(kKeptMass);
        const uint8_t stride = ub_->StateStride();
        AscendC::Add(masses, masses, blocks, ub_->StateCount(), sums,
                     AscendC::BinaryRepeatParams(1, 1, 1, stride, stride, 8));
    }

    UbMap* ub_ = nullptr;
    uint32_t headDim_ = 0;
    ListEntries* entries_ = nullptr;
    ChunkScales scales_;
};

}  // namespace toptheta
