// The threshold test of one chunk: which rows are kept, their weights, and the running softmax.
//
// All running values stay in the Unified Buffer, since the core has no scalar exponential; the scalar unit learns only
// counts and row numbers, once for each chunk.
#pragma once

#include "reductions.h"
#include "weighted_sum.h"

namespace toptheta {

// What a core knows about one head of the block.
struct HeadResult {
    uint32_t kept = 0;
    int32_t bestRow = -1;     // row of the largest score, known only while nothing is kept
    bool bestListed = false;  // whether another head of the block keeps that row
    float bestScore = kLowest;
};

// Rows [begin, begin + rows) of a sequence; their scores lie from `scoreRow` on.
struct Chunk {
    uint32_t begin;
    uint32_t rows;
    uint32_t scoreRow;
};

// The rows whose V rows one chunk needs.
struct RowList {
    uint32_t chunkBegin = 0;  // the row of the sequence that has number 0
    uint32_t kept = 0;        // rows that any head of the block keeps
    uint32_t count = 0;       // rows to fetch: those, or all of the chunk
    uint32_t weightsAt = 0;   // where their weights begin
    bool dense = false;
};

template <typename T>
class ChunkSelection {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling)
    {
        ub_ = ub;
        tiling_ = tiling;
    }

    // What stays in UB from the first segment to the last.
    TOPTHETA_DEVICE inline void Prepare()
    {
        AscendC::CreateVecIndex(ub_->RowNumbers().template ReinterpretCast<int16_t>(), static_cast<int16_t>(0),
                                ub_->Layout().chunkRows);
        AscendC::Duplicate(ub_->PerHead(), 0.0f, static_cast<int32_t>(2 * kBlockFloats));
    }

    // Forgets the previous segment.
    TOPTHETA_DEVICE inline void Begin()
    {
        listRows_ = 0;
        allKept_ = false;
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            result_[head] = HeadResult();
        }
        AscendC::Duplicate(ub_->State(kKeptMass), 0.0f, ub_->StateCount());
        AscendC::Duplicate(ub_->State(kKeptCount), 0.0f, ub_->StateCount());
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            AscendC::Duplicate(ub_->Accumulator(head, tiling_->headDim), 0.0f, tiling_->headDim);
        }
        AscendC::Duplicate(ub_->State(kMaximum), kLowest, ub_->StateCount());
        AscendC::Duplicate(ub_->State(kTotalMass), 0.0f, ub_->StateCount());
    }

    TOPTHETA_DEVICE inline void SetLimit(uint32_t head, float limit) { limit_[head] = limit; }
    TOPTHETA_DEVICE inline const HeadResult& Result(uint32_t head) const { return result_[head]; }
    TOPTHETA_DEVICE inline uint32_t ListRows() const { return listRows_; }
    // Brings Result().kept up to date at the end of a segment.
    TOPTHETA_DEVICE inline void Finish() { ReadCounts(); }

    // Scales the raw products of a chunk; lanes past its end become kLowest, which nothing keeps.
    TOPTHETA_DEVICE inline void ScaleScores(const Chunk& chunk)
    {
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            LocalTensor<float> scores = Scores(head, chunk);
            AscendC::Muls(scores, scores, tiling_->scaleValue, static_cast<int32_t>(chunk.rows));
        }
        if (chunk.rows % kLanes > 0) {
            PipeBarrier<PIPE_V>();
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                FillTail(Scores(head, chunk), chunk.rows, AlignUp(chunk.rows, kLanes), kLowest);
            }
        }
    }

    // Compares and compacts; Count() gives the length of the list.
    TOPTHETA_DEVICE inline void MakeList(const Chunk& chunk)
    {
        const uint32_t padded = AlignUp(chunk.rows, kLanes);
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            AscendC::CompareScalar(ub_->Mask(head), Scores(head, chunk), limit_[head], AscendC::CMPMODE::GT, padded);
        }
        LocalTensor<uint16_t> any = AnyMask().template ReinterpretCast<uint16_t>();
        for (uint32_t head = 1; head < ub_->Heads(); head++) {
            PipeBarrier<PIPE_V>();
            const LocalTensor<uint16_t> first = head == 1 ? ub_->Mask(0).template ReinterpretCast<uint16_t>() : any;
            AscendC::Or(any, first, ub_->Mask(head).template ReinterpretCast<uint16_t>(),
                        static_cast<int32_t>(padded / kMaskBits));
        }
        PipeBarrier<PIPE_V>();
        // the scalar unit has read the list of the chunk before
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
        Compact(ub_->RowList(), any, padded);
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
        const uint32_t padded = AlignUp(chunk.rows, kLanes);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            ReduceRow<Reduction::kMax>(*ub_, Scores(head, chunk), padded, head);
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
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            LocalTensor<float> accumulator = ub_->Accumulator(head, tiling_->headDim);
            WithBlock<BlockOperation::kMultiply>(accumulator, accumulator, ub_->State(kCorrection)[head * kBlockFloats],
                                                 tiling_->headDim);
        }
    }

    // Sums of a chunk: `total` for exp(score - maximum) over all its keys, and the weights of the list, which are
    // exp(score - maximum) for a head that keeps the row and 0 for one that does not.
    TOPTHETA_DEVICE inline void AddChunk(const Chunk& chunk, const RowList& list, bool total)
    {
        if (total) {
            SumAll(chunk);
        }
        if (list.count > 0) {
            MakeWeights(chunk, list);
        }
        AddMasses(total, list.count > 0);
        listRows_ += list.kept;
        TrackBest(chunk);
    }

    // First phase of post-softmax: the total alone.
    TOPTHETA_DEVICE inline void AddTotal(const Chunk& chunk)
    {
        SumAll(chunk);
        AddMasses(true, false);
    }

private:
    TOPTHETA_DEVICE inline void SumAll(const Chunk& chunk)
    {
        const uint32_t padded = AlignUp(chunk.rows, kLanes);
        LocalTensor<float> work = ub_->Partials();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            SubtractBlock(work, Scores(head, chunk), ub_->State(kMaximum)[head * kBlockFloats], padded);
            PipeBarrier<PIPE_V>();
            AscendC::Exp(work, work, static_cast<int32_t>(padded));
            ReduceRow<Reduction::kSum>(*ub_, work, padded, head, kFirstResult);
        }
    }

    TOPTHETA_DEVICE inline void MakeWeights(const Chunk& chunk, const RowList& list)
    {
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            PickScores(head, chunk, list);
        }
        CountKept(list);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            Exponentiate(ub_->Weights(head)[list.weightsAt], head, AlignUp(list.count, kLanes));
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
        return ub_->Scores(head, chunk.scoreRow, AlignUp(chunk.rows, kLanes));
    }
    TOPTHETA_DEVICE inline LocalTensor<uint8_t> AnyMask() { return ub_->Mask(ub_->Heads() > 1 ? ub_->Heads() : 0); }
    TOPTHETA_DEVICE inline LocalTensor<uint8_t> WorkMask() { return ub_->Mask(ub_->Heads() + 1); }

    // Numbers of the rows whose mask bit is set.
    TOPTHETA_DEVICE inline void Compact(const LocalTensor<uint16_t>& to, const LocalTensor<uint16_t>& mask,
                                        uint32_t rows)
    {
        uint64_t unused = 0;
        AscendC::GatherMask(to, ub_->RowNumbers(), mask, true, rows, AscendC::GatherMaskParams(1, 1, 8, 0), unused);
    }

    // weights = scores of the listed rows, kLowest where this head does not keep the row
    TOPTHETA_DEVICE inline void PickScores(uint32_t head, const Chunk& chunk, const RowList& list)
    {
        const uint32_t padded = AlignUp(chunk.rows, kLanes);
        LocalTensor<float> weights = ub_->Weights(head)[list.weightsAt];
        LocalTensor<float> scores = Scores(head, chunk);
        if (list.dense || ub_->Heads() > 1) {
            LocalTensor<float> own = list.dense ? weights : ub_->Partials();
            AscendC::Select(own, ub_->Mask(head), scores, kLowest, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, padded);
            scores = own;
            PipeBarrier<PIPE_V>();
        }
        if (list.dense) {
            return;
        }
        uint64_t unused = 0;
        AscendC::GatherMask(weights, scores, AnyMask().template ReinterpretCast<uint32_t>(), true, padded,
                            AscendC::GatherMaskParams(1, 1, 8, 0), unused);
        PipeBarrier<PIPE_V>();
        FillTail(weights, list.count, AlignUp(list.count, kLanes), kLowest);
    }

    TOPTHETA_DEVICE inline void CountKept(const RowList& list)
    {
        const uint32_t padded = AlignUp(list.count, kLanes);
        if (ub_->Heads() == 1) {
            result_[0].kept += list.kept;
            return;
        }
        LocalTensor<float> work = ub_->Partials();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            PipeBarrier<PIPE_V>();
            const LocalTensor<float> weights = ub_->Weights(head)[list.weightsAt];
            AscendC::CompareScalar(WorkMask(), weights, kLowest, AscendC::CMPMODE::GT, padded);
            AscendC::Duplicate(work, 1.0f, static_cast<int32_t>(padded));
            PipeBarrier<PIPE_V>();
            AscendC::Select(work, WorkMask(), work, 0.0f, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, padded);
            ReduceRow<Reduction::kSum>(*ub_, work, padded, head, kSecondResult);
        }
        const LocalTensor<float> blocks = SpreadPerHead(*ub_, kSecondResult);
        AscendC::Add(ub_->State(kKeptCount), ub_->State(kKeptCount), blocks, static_cast<int32_t>(ub_->StateCount()));
    }

    TOPTHETA_DEVICE inline void Exponentiate(const LocalTensor<float>& weights, uint32_t head, uint32_t padded)
    {
        PipeBarrier<PIPE_V>();
        SubtractBlock(weights, weights, ub_->State(kMaximum)[head * kBlockFloats], padded);
        PipeBarrier<PIPE_V>();
        AscendC::Exp(weights, weights, static_cast<int32_t>(padded));
        ReduceRow<Reduction::kSum>(*ub_, weights, padded, head, kSecondResult);
        if (WeightScale<T>::kValue != 1.0f) {
            AscendC::Muls(weights, weights, WeightScale<T>::kValue, static_cast<int32_t>(padded));
        }
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
            if (result_[head].kept == 0) {
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
        // where every score is -inf the lanes past the end equal the maximum too
        const bool found = row >= 0 && static_cast<uint32_t>(row) < chunk.rows;
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
    uint32_t listRows_ = 0;
    bool allKept_ = false;
};

}  // namespace toptheta
