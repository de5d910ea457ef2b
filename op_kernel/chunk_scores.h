// What makes scores of the raw products of a chunk: their scale, the weight of a sample's keys, and kLowest where a row
// has no score.
#pragma once

#include "chunk.h"
#include "key_sample.h"
#include "query_tokens.h"
#include "reductions.h"

namespace toptheta {

template <typename Types>
class ChunkScores {
public:
    // `visible`: the keys that each head sees, where they may differ.
    TOPTHETA_DEVICE inline void Init(UbMap* ub, float scale, const VisibleKeys<Types::kTokens>* visible)
    {
        ub_ = ub;
        scale_ = scale;
        visible_ = visible;
    }

    // Of the K rows of the next chunk.
    TOPTHETA_DEVICE inline void SetScales(const ChunkScales& scales) { scales_ = scales; }

    // Scales the raw products of a chunk; lanes past its end stay below LowestLimit, so that nothing keeps them.
    TOPTHETA_DEVICE inline void Scale(const Chunk& chunk)
    {
        const uint32_t chunkRows = ub_->Layout().chunkRows;
        const bool joint = IsJoint(*ub_, chunk.scoreRow);
        PipeBarrier<PIPE_V>();
        if constexpr (IsInt8<typename Types::Key>::kValue) {
            ScaleByHead(chunk);
            return;
        }
        if (joint && (MayScaleFreeLanes(scale_) || chunk.rows == chunkRows)) {
            const LocalTensor<float> all = ub_->Scores(0, chunk.scoreRow, ub_->Heads() * chunkRows);
            FillTails(all, ub_->Heads(), chunkRows, chunk.rows, kLowest);
            PipeBarrier<PIPE_V>();
            AscendC::Muls(all, all, scale_, static_cast<int32_t>(ub_->Heads() * chunkRows));
            return;
        }
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            LocalTensor<float> scores = ScoresOf(*ub_, head, chunk);
            AscendC::Muls(scores, scores, scale_, static_cast<int32_t>(chunk.rows));
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
            const LocalTensor<float> scores = ScoresOf(*ub_, head, chunk)[begin - chunk.begin];
            WithBlock<BlockOperation::kAdd>(scores, scores, weight, end - begin);
        }
    }

    // Scores of keys that a row does not see become kLowest, those past the end of the chunk too: nothing of a row may
    // be left. The rows behind the real tokens see none. While a row has seen none its masses count them, until its
    // first real score makes the factor of those masses 0.
    TOPTHETA_DEVICE inline void HideKeys(const Chunk& chunk)
    {
        if (visible_->AllSee(chunk.begin + chunk.rows)) {
            return;
        }
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const uint32_t seen = visible_->Of(head);
            if (seen < chunk.begin + chunk.rows) {
                FillFrom(ScoresOf(*ub_, head, chunk), seen > chunk.begin ? seen - chunk.begin : 0,
                         LanesOf(*ub_, chunk));
            }
        }
    }

    // Lanes past the end of a chunk become kLowest.
    TOPTHETA_DEVICE inline void FillTailsOf(const Chunk& chunk)
    {
        if (chunk.rows % kLanes > 0) {
            PipeBarrier<PIPE_V>();
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                FillTails(ScoresOf(*ub_, head, chunk), 1, kLanes, chunk.rows, kLowest);
            }
        }
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

    // The scores of int8 K: the factor of each head has what was taken out of its query.
    TOPTHETA_DEVICE inline void ScaleByHead(const Chunk& chunk)
    {
        const uint32_t ahead = scales_.Ahead(ub_->Layout(), chunk.rows);
        for (uint32_t head = 0; head < ub_->Heads() && scales_.perRow; head++) {
            const LocalTensor<float> scores = ScoresOf(*ub_, head, chunk);
            AscendC::Mul(scores, scores, ub_->KeyScales()[scales_.at], static_cast<int32_t>(ahead));
            if (ahead < chunk.rows) {
                AscendC::Mul(scores[ahead], scores[ahead], ub_->KeyScales(), static_cast<int32_t>(chunk.rows - ahead));
            }
        }
        PipeBarrier<PIPE_V>();
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<float> scores = ScoresOf(*ub_, head, chunk);
            WithBlock<BlockOperation::kMultiply>(scores, scores, ub_->State(kScoreScale)[head * kBlockFloats],
                                                 chunk.rows);
        }
        FillTailsOf(chunk);
    }

    UbMap* ub_ = nullptr;
    float scale_ = 0.0f;
    const VisibleKeys<Types::kTokens>* visible_ = nullptr;
    ChunkScales scales_;
};

}  // namespace toptheta
