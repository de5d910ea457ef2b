// The threshold test of one chunk: which rows are kept, their weights, and the running softmax.
//
// All running values stay in the Unified Buffer, since the core has no scalar exponential; the scalar unit learns only
// counts and row numbers, once for each chunk.
#pragma once

#include "list_entries.h"
#include "query_tokens.h"
#include "reductions.h"
#include "weighted_sum.h"

namespace toptheta {

template <typename Types>
class ChunkSelection {
public:
    using Key = typename Types::Key;
    using Value = typename Types::Value;

    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling)
    {
        ub_ = ub;
        tiling_ = tiling;
        entries_.Init(ub);
    }

    // The keys that each head sees, where they may differ.
    TOPTHETA_DEVICE inline void SetVisible(const VisibleKeys<Types::kTokens>& visible) { visible_ = visible; }

    // What stays in UB from the first segment to the last.
    TOPTHETA_DEVICE inline void Prepare()
    {
        AscendC::CreateVecIndex(ub_->RowNumbers().template ReinterpretCast<int16_t>(), static_cast<int16_t>(0),
                                ub_->Layout().chunkRows);
        AscendC::Duplicate(ub_->PerHead(), 0.0f, static_cast<int32_t>(2 * kBlockFloats));
        AscendC::Duplicate(ub_->Ones(), 1.0f, static_cast<int32_t>(kBlockFloats));
    }

    // Forgets the previous segment.
    TOPTHETA_DEVICE inline void Begin()
    {
        listRows_ = 0;
        allKept_ = false;
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            result_[head] = HeadResult();
        }
        const LocalTensor<float> masses = ub_->Masses(3);
        AscendC::Duplicate(masses, 0.0f, static_cast<int32_t>(masses.GetSize()));
        AscendC::Duplicate(ub_->Accumulators(tiling_->headDim), 0.0f, ub_->Heads() * tiling_->headDim);
        AscendC::Duplicate(ub_->State(kMaximum), kLowest, ub_->StateCount());
    }

    TOPTHETA_DEVICE inline void SetLimit(uint32_t head, float limit) { limit_[head] = limit; }
    TOPTHETA_DEVICE inline const HeadResult& Result(uint32_t head) const { return result_[head]; }
    TOPTHETA_DEVICE inline uint32_t ListRows() const { return listRows_; }
    // Brings Result().kept up to date at the end of a segment.
    TOPTHETA_DEVICE inline void Finish() { ReadCounts(); }

    // Scales the raw products of a chunk; lanes past its end stay below LowestLimit, so that nothing keeps them.
    TOPTHETA_DEVICE inline void ScaleScores(const Chunk& chunk)
    {
        const uint32_t chunkRows = ub_->Layout().chunkRows;
        const bool joint = IsJoint(*ub_, chunk.scoreRow);
        PipeBarrier<PIPE_V>();
        if constexpr (IsInt8<typename Types::Key>::kValue) {
            ScaleByHead(chunk);
            return;
        }
        if (joint && (MayScaleFreeLanes(tiling_->scaleValue) || chunk.rows == chunkRows)) {
            const LocalTensor<float> all = ub_->Scores(0, chunk.scoreRow, ub_->Heads() * chunkRows);
            FillTails(all, ub_->Heads(), chunkRows, chunk.rows, kLowest);
            PipeBarrier<PIPE_V>();
            AscendC::Muls(all, all, tiling_->scaleValue, static_cast<int32_t>(ub_->Heads() * chunkRows));
            return;
        }
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            LocalTensor<float> scores = Scores(head, chunk);
            AscendC::Muls(scores, scores, tiling_->scaleValue, static_cast<int32_t>(chunk.rows));
        }
        FillTailsOf(chunk);
    }

    // Keys of a sample at equal distances stand for those between them, too: their scores rise by the logarithm of how
    // many there are.
    TOPTHETA_DEVICE inline void WeighSample(const Chunk& chunk, const KeySample& sample)
    {
        const uint32_t begin = sample.StridedFrom(chunk.begin);
        const uint32_t end = sample.StridedUpTo(chunk.begin + chunk.rows);
        if (begin >= end) {
            return;
        }
        const LocalTensor<float> weight = ub_->State(kNewMaximum);
        AscendC::Duplicate(weight, sample.Weight(), static_cast<int32_t>(kBlockFloats));
        PipeBarrier<PIPE_V>();
        AscendC::Ln(weight, weight, static_cast<int32_t>(kBlockFloats));
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<float> scores = Scores(head, chunk)[begin - chunk.begin];
            WithBlock<BlockOperation::kAdd>(scores, scores, weight, end - begin);
        }
    }

    // Scores of keys that a row does not see become kLowest, those past the end of the chunk too: nothing of a row may
    // be left. The rows behind the real tokens see none. While a row has seen none its masses count them, until its
    // first real score makes the factor of those masses 0.
    TOPTHETA_DEVICE inline void HideKeys(const Chunk& chunk)
    {
        if (visible_.AllSee(chunk.begin + chunk.rows)) {
            return;
        }
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const uint32_t seen = visible_.Of(head);
            if (seen < chunk.begin + chunk.rows) {
                FillFrom(Scores(head, chunk), seen > chunk.begin ? seen - chunk.begin : 0, Lanes(chunk));
            }
        }
    }

    // Lanes past the end of a chunk become kLowest.
    TOPTHETA_DEVICE inline void FillTailsOf(const Chunk& chunk)
    {
        if (chunk.rows % kLanes > 0) {
            PipeBarrier<PIPE_V>();
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                FillTails(Scores(head, chunk), 1, kLanes, chunk.rows, kLowest);
            }
        }
    }

    // Where the scales of the rows of a chunk begin in their rings, and whether K and V have one for each row.
    TOPTHETA_DEVICE inline void SetScales(uint32_t at, bool ofKeys, bool ofValues)
    {
        scalesAt_ = at;
        hasKeyScales_ = ofKeys;
        hasValueScales_ = ofValues;
    }

    // Compares and compacts; Count() gives the length of the list.
    TOPTHETA_DEVICE inline void MakeList(const Chunk& chunk)
    {
        const uint32_t lanes = Lanes(chunk);
        if (lanes < Pitch(chunk)) {
            // masks of all heads are read at once
            LocalTensor<uint16_t> masks = ub_->Mask(0, ub_->Heads()).template ReinterpretCast<uint16_t>();
            AscendC::Duplicate(masks, static_cast<uint16_t>(0), static_cast<int32_t>(masks.GetSize()));
        }
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            AscendC::CompareScalar(ub_->Mask(head), Scores(head, chunk), limit_[head], AscendC::CMPMODE::GT, lanes);
        }
        JoinMasks();
        PipeBarrier<PIPE_V>();
        // the scalar unit has read the list of the chunk before
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
        Compact(ub_->RowList(), AnyMask().template ReinterpretCast<uint16_t>(), AlignUp(chunk.rows, kLanes));
        SetFlag<HardEvent::V_S>(kEvent);
    }

    // Waits for the list. Nothing but a flag orders the count register, so it is read only after one.
    TOPTHETA_DEVICE inline uint32_t Count()
    {
        WaitFlag<HardEvent::V_S>(kEvent);
        return static_cast<uint32_t>(AscendC::GetGatherMaskRemainCount());
    }

    // Running maximum, and exp(old - new), which rescales the masses and, by RescaleAccumulators, the sums of V rows.
    TOPTHETA_DEVICE inline void UpdateMaximum(const Chunk& chunk)
    {
        if (IsJoint(*ub_, chunk.scoreRow)) {
            const uint32_t pitch = Pitch(chunk);
            ReduceRows<Reduction::kMax>(*ub_, ub_->Scores(0, chunk.scoreRow, ub_->Heads() * pitch), pitch,
                                        kFirstResult);
        } else {
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                ReduceRow<Reduction::kMax>(*ub_, Scores(head, chunk), Lanes(chunk), head);
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
        WithBlocks<BlockOperation::kMultiply>(ub_->Accumulators(tiling_->headDim), ub_->State(kCorrection),
                                              ub_->Heads(), tiling_->headDim);
    }

    // Weights of a list that were made before the last UpdateMaximum. A list has been added since.
    TOPTHETA_DEVICE inline void RescaleWeights(const RowList& list)
    {
        WithBlocks<BlockOperation::kMultiply>(WeightsOf(*ub_, list, 0), ub_->State(kCorrection), ub_->Heads(),
                                              list.weightPitch);
    }

    // Weights and sums of a chunk, and what the scalar unit has to know of it.
    TOPTHETA_DEVICE inline void AddChunk(const Chunk& chunk, const RowList& list, bool total)
    {
        WeighChunk(chunk, list, total);
        FinishChunk(chunk, list);
    }

    // Sums of a chunk: `total` for exp(score - maximum) over all its keys, and the weights of the list, which are
    // exp(score - maximum) for a head that keeps the row and 0 for one that does not.
    TOPTHETA_DEVICE inline void WeighChunk(const Chunk& chunk, const RowList& list, bool total)
    {
        if (total || list.count > 0) {
            Exponentiate(chunk);
        }
        if (total) {
            ReduceRows<Reduction::kSum>(*ub_, ub_->Partials(), Pitch(chunk), kFirstResult);
        }
        if (list.count > 0) {
            MakeWeights(chunk, list);
        }
        AddMasses(total, list.count > 0);
    }

    TOPTHETA_DEVICE inline void FinishChunk(const Chunk& chunk, const RowList& list)
    {
        if (list.apart) {
            entries_.Read();
        }
        listRows_ += list.kept;
        TrackBest(chunk);
    }

    // Entries that a head keeps of a list that lies apart.
    TOPTHETA_DEVICE inline uint32_t EntriesOf(uint32_t head) const { return entries_.Of(head); }

    // First phase of post-softmax: the total alone.
    TOPTHETA_DEVICE inline void AddTotal(const Chunk& chunk)
    {
        Exponentiate(chunk);
        ReduceRows<Reduction::kSum>(*ub_, ub_->Partials(), Pitch(chunk), kFirstResult);
        AddMasses(true, false);
    }

    // Lanes from the exponentials and masks of a head to those of the next.
    TOPTHETA_DEVICE inline uint32_t Pitch(const Chunk& chunk) const
    {
        return ub_->Heads() > 1 ? ub_->Layout().chunkRows : AlignUp(chunk.rows, kLanes);
    }

private:
    // Lanes [from, end) become kLowest.
    TOPTHETA_DEVICE inline void FillFrom(const LocalTensor<float>& scores, uint32_t from, uint32_t end)
    {
        const uint32_t full = AlignUp(from, kLanes);
        FillTails(scores, 1, kLanes, from, kLowest);
        if (full < end) {
            AscendC::Duplicate(scores[full], kLowest, static_cast<int32_t>(end - full));
        }
    }

    // Of the scales of a chunk, how many lie in front of the end of their ring.
    TOPTHETA_DEVICE inline uint32_t ScalesAhead(const Chunk& chunk) const
    {
        return Least(chunk.rows, ScaleRows(ub_->Layout()) - scalesAt_);
    }

    // The scores of int8 K: the factor of each head has what was taken out of its query.
    TOPTHETA_DEVICE inline void ScaleByHead(const Chunk& chunk)
    {
        const uint32_t ahead = ScalesAhead(chunk);
        for (uint32_t head = 0; head < ub_->Heads() && hasKeyScales_; head++) {
            const LocalTensor<float> scores = Scores(head, chunk);
            AscendC::Mul(scores, scores, ub_->KeyScales()[scalesAt_], static_cast<int32_t>(ahead));
            if (ahead < chunk.rows) {
                AscendC::Mul(scores[ahead], scores[ahead], ub_->KeyScales(), static_cast<int32_t>(chunk.rows - ahead));
            }
        }
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<float> scores = Scores(head, chunk);
            WithBlock<BlockOperation::kMultiply>(scores, scores, ub_->State(kScoreScale)[head * kBlockFloats],
                                                 chunk.rows);
        }
        FillTailsOf(chunk);
    }

    // Lanes of a head that hold scores, or what stands for none.
    TOPTHETA_DEVICE inline uint32_t Lanes(const Chunk& chunk) const
    {
        return IsJoint(*ub_, chunk.scoreRow) ? Pitch(chunk) : AlignUp(chunk.rows, kLanes);
    }

    // partials[head][lane] = exp(score - maximum)
    TOPTHETA_DEVICE inline void Exponentiate(const Chunk& chunk)
    {
        const uint32_t pitch = Pitch(chunk);
        const uint32_t lanes = Lanes(chunk);
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
                SubtractBlock(work[head * pitch], Scores(head, chunk), ub_->State(kMaximum)[head * kBlockFloats],
                              lanes);
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
        CountKept(chunk, list);
        if (list.apart) {
            entries_.Mask(list);
        }
        ReduceRows<Reduction::kSum>(*ub_, weights, list.weightPitch, kSecondResult);
        if (WeightScale<Value>::kValue != 1.0f) {
            AscendC::Muls(weights, weights, WeightScale<Value>::kValue, count);
        }
        if constexpr (IsInt8<Value>::kValue) {
            if (hasValueScales_) {
                ScaleWeights(chunk, list);
            }
        }
    }

    // weights *= scales of the listed V rows. The masses have been added up; the work rows are free.
    TOPTHETA_DEVICE inline void ScaleWeights(const Chunk& chunk, const RowList& list)
    {
        const LocalTensor<float> scales = ub_->Partials();
        const uint32_t ahead = ScalesAhead(chunk);
        AscendC::Adds(scales, ub_->ValueScales()[scalesAt_], 0.0f, static_cast<int32_t>(ahead));
        if (ahead < chunk.rows) {
            AscendC::Adds(scales[ahead], ub_->ValueScales(), 0.0f, static_cast<int32_t>(chunk.rows - ahead));
        }
        PipeBarrier<PIPE_V>();
        if (!list.dense) {
            uint64_t unused = 0;
            AscendC::GatherMask(scales, scales, AnyMask().template ReinterpretCast<uint32_t>(), true, chunk.rows,
                                AscendC::GatherMaskParams(1, 1, 8, 0), unused);
            PipeBarrier<PIPE_V>();
        }
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<float> weights = WeightsOf(*ub_, list, head);
            AscendC::Mul(weights, weights, scales, static_cast<int32_t>(list.count));
        }
    }

    TOPTHETA_DEVICE inline void PickWeights(const Chunk& chunk, const RowList& list)
    {
        const uint32_t pitch = Pitch(chunk);
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
                                AnyMask().template ReinterpretCast<uint32_t>(), true, AlignUp(chunk.rows, kLanes),
                                AscendC::GatherMaskParams(1, 1, 8, 0), unused);
        }
        PipeBarrier<PIPE_V>();
        FillTails(WeightsOf(*ub_, list, 0), ub_->Heads(), list.weightPitch, list.count, unkept);
    }

    // Where several heads share a list: how many of it each of them keeps.
    TOPTHETA_DEVICE inline void CountKept(const Chunk& chunk, const RowList& list)
    {
        if (ub_->Heads() == 1) {
            result_[0].kept += list.kept;
            return;
        }
        const uint32_t pitch = Pitch(chunk);
        LocalTensor<float> work = ub_->Partials();
        AscendC::Select(work, ub_->Mask(0, ub_->Heads()), ub_->Ones(), 0.0f, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE,
                        kLanes, static_cast<uint8_t>(ub_->Heads() * pitch / kLanes),
                        AscendC::BinaryRepeatParams(1, 0, 0, 8, 0, 0));
        ReduceRows<Reduction::kSum>(*ub_, work, pitch, kSecondResult);
        const LocalTensor<float> blocks = SpreadPerHead(*ub_, kSecondResult);
        AscendC::Add(ub_->State(kKeptCount), ub_->State(kKeptCount), blocks, static_cast<int32_t>(ub_->StateCount()));
    }

    // The mask of what any head keeps: halves of the masks are joined until one is left.
    TOPTHETA_DEVICE inline void JoinMasks()
    {
        const uint32_t words = MaskBytes(ub_->Layout().chunkRows) / sizeof(uint16_t);
        LocalTensor<uint16_t> from = ub_->Mask(0, ub_->Heads()).template ReinterpretCast<uint16_t>();
        for (uint32_t left = ub_->Heads(); left > 1; left /= 2) {
            LocalTensor<uint16_t> any = ub_->Mask(ub_->Heads(), left / 2).template ReinterpretCast<uint16_t>();
            PipeBarrier<PIPE_V>();
            AscendC::Or(any, from, from[(left - left / 2) * words], static_cast<int32_t>(left / 2 * words));
            if (left % 2 > 0) {
                PipeBarrier<PIPE_V>();
                AscendC::Or(any, any, from[left / 2 * words], static_cast<int32_t>(words));
            }
            from = any;
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

    static constexpr uint32_t kMaskBits = 16;
    static constexpr uint32_t kWorkList = 8 * 1024;  // bytes into `partials`, past the work row

    TOPTHETA_DEVICE inline LocalTensor<float> Scores(uint32_t head, const Chunk& chunk)
    {
        return ub_->Scores(head, chunk.scoreRow, Lanes(chunk));
    }
    TOPTHETA_DEVICE inline LocalTensor<uint8_t> AnyMask() { return ub_->Mask(ub_->Heads() > 1 ? ub_->Heads() : 0); }
    TOPTHETA_DEVICE inline LocalTensor<uint8_t> WorkMask()
    {
        return ub_->Mask(ub_->Heads() + JoinedMasks(ub_->Heads()));
    }

    // Numbers of the rows whose mask bit is set.
    TOPTHETA_DEVICE inline void Compact(const LocalTensor<uint16_t>& to, const LocalTensor<uint16_t>& mask,
                                        uint32_t rows)
    {
        uint64_t unused = 0;
        AscendC::GatherMask(to, ub_->RowNumbers(), mask, true, rows, AscendC::GatherMaskParams(1, 1, 8, 0), unused);
    }

    // Counts of several heads that share a list are known in UB only; the scalar unit reads them while it needs to.
    TOPTHETA_DEVICE inline void ReadCounts()
    {
        if (ub_->Heads() == 1) {
            return;
        }
        LocalTensor<int32_t> counts = ub_->ReduceFirst().template ReinterpretCast<int32_t>();
        PipeBarrier<PIPE_V>();
        AscendC::Cast(counts, ub_->State(kKeptCount), AscendC::RoundMode::CAST_RINT, ub_->StateCount());
        SetFlag<HardEvent::V_S>(kEvent);
        WaitFlag<HardEvent::V_S>(kEvent);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            result_[head].kept = static_cast<uint32_t>(counts.GetValue(head * kBlockFloats));
        }
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
    }

    // While a head has kept nothing, remembers its largest score: the row keeps that one if it stays so.
    TOPTHETA_DEVICE inline void TrackBest(const Chunk& chunk)
    {
        if (allKept_) {
            return;
        }
        ReadCounts();
        allKept_ = true;
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            if (result_[head].kept == 0 && (!Types::kTokens || visible_.Of(head) > 0)) {
                allKept_ = false;
                FindBest(head, chunk);
            }
        }
    }

    TOPTHETA_DEVICE inline void FindBest(uint32_t head, const Chunk& chunk)
    {
        const uint32_t padded = AlignUp(chunk.rows, kLanes);
        LocalTensor<float> work = ub_->Partials();
        SubtractBlock(work, Scores(head, chunk), ub_->State(kMaximum)[head * kBlockFloats], padded);
        PipeBarrier<PIPE_V>();
        AscendC::CompareScalar(WorkMask(), work, 0.0f, AscendC::CMPMODE::EQ, padded);
        const int32_t row = FirstOf(WorkMask(), padded);
        HeadResult& result = result_[head];
        const float score = ub_->State(kMaximum).GetValue(head * kBlockFloats);
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
        // where every score is -inf, lanes that hold none equal the maximum too
        const bool found = row >= 0 && static_cast<uint32_t>(row) < chunk.rows && score > kLowest;
        if (!found || (result.bestRow >= 0 && score <= result.bestScore)) {
            return;
        }
        result.bestRow = static_cast<int32_t>(chunk.begin) + row;
        result.bestScore = score;
        const LocalTensor<uint16_t> best = WorkMask().template ReinterpretCast<uint16_t>();
        AscendC::And(best, best, AnyMask().template ReinterpretCast<uint16_t>(),
                     static_cast<int32_t>(padded / kMaskBits));
        result.bestListed = FirstOf(WorkMask(), padded) == row;
    }

    // The lowest row whose mask bit is set, -1 if there is none.
    TOPTHETA_DEVICE inline int32_t FirstOf(const LocalTensor<uint8_t>& mask, uint32_t rows)
    {
        LocalTensor<uint16_t> found = ub_->Partials().template ReinterpretCast<uint16_t>()[kWorkList / 2];
        PipeBarrier<PIPE_V>();
        Compact(found, mask.template ReinterpretCast<uint16_t>(), rows);
        SetFlag<HardEvent::V_S>(kEvent);
        const int32_t row = Count() > 0 ? static_cast<int32_t>(found.GetValue(0)) : -1;
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
        return row;
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    float limit_[kMaxHeadBlock] = {};
    HeadResult result_[kMaxHeadBlock];
    ListEntries entries_;
    VisibleKeys<Types::kTokens> visible_;
    uint32_t scalesAt_ = 0;
    bool hasKeyScales_ = false;
    bool hasValueScales_ = false;
    uint32_t listRows_ = 0;
    bool allKept_ = false;
};

}  // namespace toptheta
