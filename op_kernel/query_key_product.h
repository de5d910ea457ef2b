// Scores of a K tile: q . k for each row, accumulated in float32.
#pragma once

#include "row_stream.h"

namespace toptheta {

template <typename T>
class QueryKeyProduct;

// float16 multiplies straight into float32: one instruction takes a column block of 16 elements of all rows, with the
// query block repeated for each row, and adds it to 16 partial sums of each row. The first block is cast and multiplied
// in float32, which takes less time than to clear the sums and add to them.
template <>
class QueryKeyProduct<half> {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim)
    {
        ub_ = ub;
        headDim_ = headDim;
    }

    // scores[head][row .. row + rows) of all heads of the block; at most 256 rows. The stream gets its `tiles` back as
    // soon as the last of the K rows is read.
    TOPTHETA_DEVICE inline void Compute(RowStream<half>& stream, uint32_t tiles, uint32_t row, uint32_t rows)
    {
        LocalTensor<half> query = ub_->Query<half>(ub_->Heads() * headDim_);
        const LocalTensor<half> keys = stream.Take(tiles);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            Multiply(keys, query[head * headDim_], ub_->FirstColumns(head), rows);
            if (head + 1 == ub_->Heads()) {
                stream.Free(tiles);
            }
            FoldLanes(ub_->Scores(head, row, AlignUp(rows, kBlockFloats)), rows);
        }
    }

private:
    // partials[row][16 lanes] = sum over column blocks of query block * key block; `first` holds the first block of the
    // query for four rows
    TOPTHETA_DEVICE inline void Multiply(const LocalTensor<half>& keys, const LocalTensor<half>& query,
                                         const LocalTensor<float>& first, uint32_t rows)
    {
        LocalTensor<float> partials = ub_->Partials();
        const uint8_t rowBlocks = headDim_ / kBlockHalves;
        const uint8_t fours = rows / 4;
        const uint32_t rest = rows % 4;
        const AscendC::UnaryRepeatParams columns(1, rowBlocks, 8, 4 * rowBlocks);
        if (fours > 0) {
            AscendC::Cast(partials, keys, AscendC::RoundMode::CAST_NONE, kLanes, fours, columns);
        }
        if (rest > 0) {
            AscendC::Duplicate(partials[fours * kLanes], 0.0f, kLanes);
            PipeBarrier<PIPE_V>();
            AscendC::Cast(partials[fours * kLanes], keys[fours * 4 * headDim_], AscendC::RoundMode::CAST_NONE,
                          rest * kBlockHalves, 1, columns);
        }
        PipeBarrier<PIPE_V>();
        AscendC::Mul(partials, partials, first, kLanes, CeilDiv(rows, 4),
                     AscendC::BinaryRepeatParams(1, 1, 1, 8, 8, 0));
        const AscendC::BinaryRepeatParams strides(1, 0, rowBlocks, 8, 0, 4 * rowBlocks);
        for (uint32_t column = kBlockHalves; column < headDim_; column += kBlockHalves) {
            PipeBarrier<PIPE_V>();
            if (fours > 0) {
                AscendC::MulAddDst(partials, query[column], keys[column], kLanes, fours, strides);
            }
            if (rest > 0) {
                AscendC::MulAddDst(partials[fours * kLanes], query[column], keys[fours * 4 * headDim_ + column],
                                   rest * kBlockHalves, 1, strides);
            }
        }
    }

    // scores[row] = sum of the 16 lanes
    TOPTHETA_DEVICE inline void FoldLanes(const LocalTensor<float>& scores, uint32_t rows)
    {
        LocalTensor<float> pairs = ub_->Spread<float>();
        const uint32_t full = rows / 32;
        PipeBarrier<PIPE_V>();
        AscendC::BlockReduceSum(pairs, ub_->Partials(), CeilDiv(rows, 4), kLanes, 1, 1, 8);
        PipeBarrier<PIPE_V>();
        if (full > 0) {
            AscendC::PairReduceSum(scores, pairs, full, kLanes, 1, 1, 8);
        }
        if (rows % 32 > 0) {
            AscendC::PairReduceSum(scores[full * 32], pairs[full * kLanes], 1, rows % 32 * 2, 1, 1, 8);
        }
    }

    UbMap* ub_ = nullptr;
    uint32_t headDim_ = 0;
};

// bfloat16 has no vector arithmetic: rows are cast to float32 in pieces of 16 KiB, a panel of columns at a time.
template <>
class QueryKeyProduct<bfloat16_t> {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim)
    {
        ub_ = ub;
        headDim_ = headDim;
        pitch_ = headDim > kLanes ? kPanelColumns : kLanes;
    }

    TOPTHETA_DEVICE inline void Compute(RowStream<bfloat16_t>& stream, uint32_t tiles, uint32_t row, uint32_t rows)
    {
        const LocalTensor<bfloat16_t> keys = stream.Take(tiles);
        const uint32_t pieceRows = kPartialBytes / 4 / pitch_;
        LocalTensor<float> query = ub_->Query<float>(ub_->Heads() * headDim_);
        for (uint32_t done = 0; done < rows; done += pieceRows) {
            const uint32_t count = Least(pieceRows, rows - done);
            for (uint32_t head = 0; head < ub_->Heads(); head++) {
                for (uint32_t column = 0; column < headDim_; column += pitch_) {
                    const uint32_t width = Least(pitch_, headDim_ - column);
                    if (head == 0 || headDim_ > pitch_) {
                        CastPanel(keys[done * headDim_ + column], width, count);
                    }
                    Multiply(query[head * headDim_ + column], width, count, column == 0);
                }
                FoldColumns(ub_->Scores(head, row + done, AlignUp(count, kBlockFloats)), count);
            }
        }
        stream.Free(tiles);
    }

private:
    TOPTHETA_DEVICE inline void CastPanel(const LocalTensor<bfloat16_t>& keys, uint32_t width, uint32_t rows)
    {
        LocalTensor<float> piece = ub_->CastPiece();
        const uint8_t toRow = pitch_ / kBlockFloats;
        const uint8_t fromRow = headDim_ / kBlockHalves;
        for (uint32_t column = 0; column < width; column += kLanes) {
            AscendC::Cast(piece[column], keys[column], AscendC::RoundMode::CAST_NONE, Least(kLanes, width - column),
                          static_cast<uint8_t>(rows), AscendC::UnaryRepeatParams(1, 1, toRow, fromRow));
        }
    }

    // partials[row][column] (+)= piece[row][column] * query[column]
    TOPTHETA_DEVICE inline void Multiply(const LocalTensor<float>& query, uint32_t width, uint32_t rows, bool first)
    {
        LocalTensor<float> partials = ub_->Partials();
        LocalTensor<float> piece = ub_->CastPiece();
        const uint8_t row = pitch_ / kBlockFloats;
        const AscendC::BinaryRepeatParams strides(1, 1, 1, row, row, 0);
        PipeBarrier<PIPE_V>();
        if (first && width < pitch_) {
            AscendC::Duplicate(partials, 0.0f, rows * pitch_);
            PipeBarrier<PIPE_V>();
        }
        for (uint32_t column = 0; column < width; column += kLanes) {
            const uint64_t lanes = Least(kLanes, width - column);
            if (first) {
                AscendC::Mul(partials[column], piece[column], query[column], lanes, static_cast<uint8_t>(rows),
                             strides);
            } else {
                AscendC::MulAddDst(partials[column], piece[column], query[column], lanes, static_cast<uint8_t>(rows),
                                   strides);
            }
        }
    }

    // scores[row] = sum of the columns
    TOPTHETA_DEVICE inline void FoldColumns(const LocalTensor<float>& scores, uint32_t rows)
    {
        LocalTensor<float> partials = ub_->Partials();
        LocalTensor<float> eighths = ub_->Spread<float>();
        const uint8_t row = pitch_ / kBlockFloats;
        const uint32_t full = rows / 8;
        PipeBarrier<PIPE_V>();
        if (pitch_ > kLanes) {
            AscendC::Add(partials, partials, partials[kLanes], kLanes, static_cast<uint8_t>(rows),
                         AscendC::BinaryRepeatParams(1, 1, 1, row, row, row));
            PipeBarrier<PIPE_V>();
        }
        AscendC::BlockReduceSum(eighths, partials, rows, kLanes, 1, 1, row);
        PipeBarrier<PIPE_V>();
        if (full > 0) {
            AscendC::BlockReduceSum(scores, eighths, full, kLanes, 1, 1, 8);
        }
        if (rows % 8 > 0) {
            AscendC::BlockReduceSum(scores[full * 8], eighths[full * kLanes], 1, rows % 8 * kBlockFloats, 1, 1, 8);
        }
    }

    UbMap* ub_ = nullptr;
    uint32_t headDim_ = 0;
    uint32_t pitch_ = 0;  // columns of a row in the cast piece
};

}  // namespace toptheta
