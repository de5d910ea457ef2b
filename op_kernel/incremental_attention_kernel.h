// Top-Theta decode attention, as a vector core works on it.
//
// A core takes its share of the rows of all sequences (work_split.h). For each piece of a (sequence, KV head, head
// block) it streams the K rows, or their scores if a cube core multiplies them, tests the scores of a chunk against the
// threshold, fetches the V rows that are kept and adds them. Pieces of a unit that other cores share are combined at
// the end.
#pragma once

#include "chunk_pipeline.h"
#include "cube_chunk_pipeline.h"
#include "kernel_tensors.h"
#include "partial_exchange.h"
#include "row_output.h"
#include "sequence_lengths.h"
#include "value_row_counts.h"

namespace toptheta {

// Pipeline: ChunkPipeline or CubeChunkPipeline.
template <typename Types, template <typename> class Pipeline, Placement kPlacement>
class IncrementalAttentionKernel {
public:
    TOPTHETA_DEVICE inline void Init(AscendC::TPipe* pipe, const TilingData* tiling, const KernelTensors& tensors,
                                     GM_ADDR workspace)
    {
        tiling_ = tiling;
        core_ = static_cast<uint32_t>(AscendC::GetBlockIdx());
        const UbShape shape = {tiling->headDim,
                               tiling->headBlock,
                               IsBfloat16<typename Types::Query>::kValue,
                               TwoPhases(),
                               !Pipeline<Types>::kMultipliesKeys,
                               sizeof(typename Types::Key),
                               sizeof(typename Types::Value),
                               Types::kTokens ? static_cast<uint32_t>(tiling->queryTokens) : 0};
        ub_.Init(pipe, PlaceBuffers(shape, {tiling->slots, tiling->chunkRows}), tiling->headBlock);
        LengthSlices<Types::kTokens> slices;
        slices.Init(ub_, *tiling, tensors.lengths);
        lengths_.Init(*tiling, slices);
        valueRows_.Init(ub_, *tiling, tiling->value, tensors.value, tensors.blockTable, 1, kValueTableEvent);
        parameters_.Init(&ub_, tiling, tensors.parameters, Pipeline<Types>::kMultipliesKeys);
        pipeline_.Init(&ub_, tiling, tensors, workspace, &valueRows_, &visible_);
        compensation_.Init(&ub_, tiling);
        output_.Init(&ub_, tiling, tensors.outputs, tensors.scales, &compensation_);
        valueRowCounts_.Init(&ub_, tiling, workspace, &output_);
        if constexpr (IsInt8<typename Types::Key>::kValue) {
            parameters_.InitScales(*tensors.scales, tensors.keyScale, tensors.valueScale);
        }
        share_ = core_ / lengths_.Sharers();
        exchange_.Init(&ub_, tiling, workspace, core_ % lengths_.Sharers() * tiling->cores);
        store_.Init(&ub_, tiling, workspace);
    }

    template <bool kSplit>
    TOPTHETA_DEVICE inline void Process()
    {
        const uint32_t units = tiling_->numKeyValueHeads * tiling_->headBlocks / lengths_.Sharers();
        const WorkTotal total = lengths_.Total();
        WriteEmptySequences();
        pipeline_.BeginWork(total, lengths_);
        SegmentIterator<SequenceLengths<Types>> segments = lengths_.SegmentsOf(total, core_);
        Segment segment;
        hasNext_ = segments.Next(next_);
        while (hasNext_) {
            segment = next_;
            StartNext();
            hasNext_ = segments.Next(next_);
            ProcessSegment<kSplit>(segment);
        }
        pipeline_.EndWork();
        if constexpr (kSplit) {
            if (AnyCut(total, units * tiling_->batch)) {
                CombineCutUnits();
            }
            if (SumsHeadBlocks(*tiling_)) {
                AscendC::SyncAll<true>();
                valueRowCounts_.SumBlocks(core_, lengths_);
            }
        }
        valueRows_.End();
        pipeline_.Drain();
        exchange_.Drain();
        output_.WaitForCopies();
        store_.Drain();
    }

    // Asks for the parameters and the first K tiles of the next segment, once; as a rule before this one is finished.
    TOPTHETA_DEVICE inline void StartNext()
    {
        if (!hasNext_ || nextStarted_) {
            return;
        }
        nextStarted_ = true;
        parameters_.Copy(HeadsOf<Types::kTokens>(*tiling_, next_));
        pipeline_.Start(next_, lengths_.Start(next_.batch));
    }

    // The masses of the segment are complete, but the vector unit still waits for V rows.
    TOPTHETA_DEVICE inline void PrepareOutput()
    {
        const HeadResult& result = pipeline_.Selection().Result(0);
        isDivisionReady_ = isWhole_ && ub_.Heads() == 1 && result.kept > 0;
        if (isDivisionReady_) {
            compensation_.PrepareDivision(1, visible_, &result.kept);
        }
    }

private:
    // The log-sum-exp of the whole row comes before the selection, unless the caller knows it.
    TOPTHETA_DEVICE inline bool TwoPhases() const
    {
        return kPlacement == kPostSoftmax && !Sampled() && !Has(*tiling_, InputIndex::kRowLse);
    }

    // A sample of the keys tells it, and comes before the rows of each segment.
    TOPTHETA_DEVICE inline bool Sampled() const
    {
        return kPlacement == kPostSoftmax && tiling_->placement == kSampledSoftmax;
    }

    TOPTHETA_DEVICE inline void WriteEmptySequences()
    {
        for (uint32_t b = core_; b < tiling_->batch; b += tiling_->cores) {
            if (lengths_(b) == 0) {
                output_.WriteEmpty(b);
            }
        }
    }

    // A unit, or a part of one as far as it can be done before the cores meet. The device compiler inlines every
    // function, so both share one place.
    template <bool kSplit>
    TOPTHETA_DEVICE inline void ProcessSegment(const Segment& segment)
    {
        isWhole_ = !kSplit || IsWhole(segment);
        isDivisionReady_ = false;
        BeginSegment(segment);
        if (TwoPhases() || Sampled()) {
            pipeline_.StreamScores(store_);
        }
        if (Sampled()) {
            pipeline_.StartRows(segment, lengths_.Start(segment.batch), false);
        }
        if (Sampled() || (TwoPhases() && isWhole_)) {
            FinishLse();
        }
        if (!TwoPhases()) {
            if (Sampled()) {
                pipeline_.Forget();
            }
            pipeline_.StreamAndSelect(*this);
        } else if (isWhole_) {
            store_.FinishStoring();
            SelectStored(segment);
        }
        if (isWhole_) {
            WriteUnit(segment);
        } else {
            cut_[cutCount_++] = segment;
            StorePart(segment);
        }
    }

    TOPTHETA_DEVICE inline void BeginSegment(const Segment& segment)
    {
        const HeadRange range = HeadsOf<Types::kTokens>(*tiling_, segment);
        nextStarted_ = false;
        visible_.Begin(*tiling_, range, segment.unitRows, lengths_.Tokens(segment.batch, segment.unitRows));
        ub_.SetHeads(range.heads);
        output_.WaitForCopies();
        BeginValues(segment, segment.rowBegin);
        if (TwoPhases()) {
            store_.Begin(segment, range, !IsWhole(segment));
        }
        if (!prepared_) {
            pipeline_.Prepare();
            prepared_ = true;
        }
        pipeline_.Forget();
        parameters_.Unpack(range);
        if (!TwoPhases() && !Sampled()) {
            SetLimits();
        }
    }

    // V rows are read from `row` on.
    TOPTHETA_DEVICE inline void BeginValues(const Segment& segment, uint32_t row)
    {
        const uint32_t start = lengths_.Start(segment.batch);
        valueRows_.Begin(segment.batch, segment.kvHead, start, row, segment.unitRows);
        if constexpr (IsInt8<typename Types::Value>::kValue) {
            pipeline_.BeginValueScales(segment, start);
        }
    }

    TOPTHETA_DEVICE inline void SetLimits()
    {
        parameters_.MakeLimits();
        for (uint32_t head = 0; head < ub_.Heads(); head++) {
            pipeline_.Selection().SetLimit(head, parameters_.Limit(head));
        }
        SetFlag<HardEvent::S_V>(kEvent);
        WaitFlag<HardEvent::S_V>(kEvent);
    }

    // log-sum-exp of the row, and the limits that follow from it
    TOPTHETA_DEVICE inline void FinishLse()
    {
        PipeBarrier<PIPE_V>();
        compensation_.MakeLse(ub_.State(kRowLse));
        SetLimits();
    }

    TOPTHETA_DEVICE inline void SelectStored(const Segment& segment)
    {
        BeginValues(segment, segment.rowBegin);
        pipeline_.SelectStored(segment, store_);
    }

    TOPTHETA_DEVICE inline void StorePart(const Segment& segment)
    {
        HeadResult results[kMaxHeadBlock];
        for (uint32_t head = 0; head < ub_.Heads(); head++) {
            results[head] = pipeline_.Selection().Result(head);
        }
        exchange_.Store(segment, share_, results, pipeline_.Selection().ListRows());
        output_.CopiesIssued();
    }

    TOPTHETA_DEVICE inline void WriteUnit(const Segment& segment)
    {
        const HeadRange range = HeadsOf<Types::kTokens>(*tiling_, segment);
        uint32_t kept[kMaxHeadBlock];
        uint32_t listRows = pipeline_.Selection().ListRows();
        StandIns standIns;
        for (uint32_t head = 0; head < range.heads; head++) {
            const HeadResult& result = pipeline_.Selection().Result(head);
            kept[head] = result.kept;
            if (kept[head] == 0 && visible_.Of(head) > 0) {
                kept[head] = StandIn(segment, head, result.bestRow);
                listRows += standIns.Add(result.bestRow, result.bestListed);
            }
        }
        if (!isDivisionReady_) {
            compensation_.PrepareDivision(range.heads, visible_, kept);
        }
        output_.Write(range, visible_, kept, parameters_);
        if (tiling_->withStats) {
            valueRowCounts_.Write(segment, listRows);
        }
        output_.CopiesIssued();
    }

    // Rows that stand in for heads that kept nothing; each is read once.
    class StandIns {
    public:
        TOPTHETA_DEVICE inline uint32_t Add(int32_t row, bool listed)
        {
            for (uint32_t i = 0; i < count_; i++) {
                listed = listed || rows_[i] == row;
            }
            rows_[count_++] = row;
            return listed ? 0 : 1;
        }

    private:
        int32_t rows_[kMaxHeadBlock] = {};
        uint32_t count_ = 0;
    };

    // Puts the V row of the largest score into the accumulator; returns the number of kept elements to report.
    // A row of NaN scores has no largest one (-1); its first row will do.
    TOPTHETA_DEVICE inline uint32_t StandIn(const Segment& segment, uint32_t head, int32_t bestRow)
    {
        const uint32_t row = bestRow < 0 ? 0 : static_cast<uint32_t>(bestRow);
        BeginValues(segment, row);
        pipeline_.AddSingleRow(head, row);
        compensation_.CountStandIn(head);
        return tiling_->partial ? 0 : 1;
    }

    TOPTHETA_DEVICE inline void CombineCutUnits()
    {
        AscendC::SyncAll<true>();
        if (TwoPhases()) {
            exchange_.BeginSecondPhase();
            for (uint32_t i = 0; i < cutCount_; i++) {
                SecondPhase(cut_[i]);
            }
            AscendC::SyncAll<true>();
            exchange_.EndSecondPhase();
        }
        for (uint32_t i = 0; i < cutCount_; i++) {
            CombineUnit(cut_[i]);
        }
    }

    // Second phase of post-softmax for a part: the other parts' masses give the log-sum-exp of the row.
    TOPTHETA_DEVICE inline void SecondPhase(const Segment& segment)
    {
        const HeadRange range = HeadsOf<Types::kTokens>(*tiling_, segment);
        parameters_.Copy(range);
        exchange_.CopyMasses(segment, range.heads);
        BeginSegment(segment);
        exchange_.CombineAllMasses();
        FinishLse();
        SelectStored(segment);
        StorePart(segment);
    }

    // The heads of a cut unit go round its cores; statistics of a unit need all of them in one place.
    TOPTHETA_DEVICE inline void CombineUnit(const Segment& segment)
    {
        const HeadRange range = HeadsOf<Types::kTokens>(*tiling_, segment);
        const uint32_t parts = segment.lastCore - segment.firstCore + 1;
        const uint32_t part = share_ - segment.firstCore;
        const bool together = tiling_->withStats;
        if (together ? part != 0 : part >= range.heads) {
            return;
        }
        uint32_t listRows = 0;
        StandIns standIns;
        for (uint32_t head = together ? 0 : part; head < range.heads; head += together ? 1 : parts) {
            CombineHead(segment, range, head, listRows, standIns);
        }
        if (tiling_->withStats) {
            output_.WaitForCopies();
            valueRowCounts_.Write(segment, listRows);
            output_.CopiesIssued();
        }
    }

    TOPTHETA_DEVICE inline void CombineHead(const Segment& segment, const HeadRange& range, uint32_t head,
                                            uint32_t& listRows, StandIns& standIns)
    {
        const HeadRange one = {range.batch, range.kvHead, range.firstHead + head, 1};
        ub_.SetHeads(1);
        output_.WaitForCopies();
        exchange_.CopyHead(segment, range.heads, head);
        parameters_.Copy(one, true);
        const CombinedHead combined = exchange_.Combine(segment);
        visible_.Begin(*tiling_, one, segment.unitRows, lengths_.Tokens(segment.batch, segment.unitRows));
        parameters_.Unpack(one, true);
        if (tiling_->sdc == kSdcExpThreshold) {
            parameters_.MakeLimits();
        }
        if (tiling_->withStats && head == 0) {
            listRows += exchange_.ListRows();
        }
        uint32_t kept[1] = {combined.kept};
        if (combined.kept == 0 && visible_.Of(0) > 0) {
            kept[0] = StandIn(segment, 0, combined.bestRow);
            listRows += standIns.Add(combined.bestRow, combined.bestListed);
        }
        compensation_.PrepareDivision(1, visible_, kept);
        output_.Write(one, visible_, kept, parameters_);
        output_.CopiesIssued();
    }

    const TilingData* tiling_ = nullptr;
    UbMap ub_;
    SequenceLengths<Types> lengths_;
    VisibleKeys<Types::kTokens> visible_;
    CacheRows<typename Types::Value> valueRows_;
    UnitParameters<Types, kPlacement> parameters_;
    Pipeline<Types> pipeline_;
    Compensation<Types> compensation_;
    RowOutput<Types> output_;
    ValueRowCounts<Types> valueRowCounts_;
    PartialExchange exchange_;
    ScoreStore store_;
    Segment next_;
    Segment cut_[2];
    uint32_t cutCount_ = 0;
    bool isWhole_ = false;
    bool isDivisionReady_ = false;
    uint32_t core_ = 0;
    uint32_t share_ = 0;  // the core, or the pair of cores that share keys, as work is split
    bool hasNext_ = false;
    bool nextStarted_ = false;
    bool prepared_ = false;
};

}  // namespace toptheta
