// Scores of a K tile: q . k for each row, accumulated in float32.
#pragma once

#include "row_stream.h"

namespace toptheta {

// K: the dtype of the K rows.
template <typename K>
class QueryKeyProduct;

// float16 multiplies straight into float32: one instruction takes a column block of 16 elements of all rows, with the
// query block repeated for each row, and adds it to 16 partial sums of each row. The first block is cast and multiplied
// in float32, which takes less time than to clear the sums and add to them.
class ColumnProduct {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub) { ub_ = ub; }

    // partials[row][16 lanes] = query block * key block, for K rows `pitch` blocks apart; `first` holds the query block
    // for four rows
    TOPTHETA_DEVICE inline void MultiplyFirst(const LocalTensor<half>& keys, uint32_t pitch,
                                              const LocalTensor<float>& first, uint32_t rows)
    {
        LocalTensor<float> partials = ub_->Partials();
        const uint8_t fours = rows / 4;
        const uint32_t rest = rows % 4;
        const AscendC::UnaryRepeatParams columns(1, pitch, 8, 4 * pitch);
        if (fours > 0) {
            AscendC::Cast(partials, keys, AscendC::RoundMode::CAST_NONE, kLanes, fours, columns);
        }
        if (rest > 0) {
            AscendC::Duplicate(partials[fours * kLanes], 0.0f, kLanes);
            PipeBarrier<PIPE_V>();
            AscendC::Cast(partials[fours * kLanes], keys[fours * 4 * pitch * kBlockHalves],
                          AscendC::RoundMode::CAST_NONE, rest * kBlockHalves, 1, columns);
        }
        PipeBarrier<PIPE_V>();
        AscendC::Mul(partials, partials, first, kLanes, CeilDiv(rows, 4),
                     AscendC::BinaryRepeatParams(1, 1, 1, 8, 8, 0));
    }

    // partials += query block * key block
    TOPTHETA_DEVICE inline void MultiplyNext(const LocalTensor<half>& keys, uint32_t pitch,
                                             const LocalTensor<half>& query, uint32_t rows)
    {
        LocalTensor<float> partials = ub_->Partials();
        const uint8_t fours = rows / 4;
        const uint32_t rest = rows % 4;
        const AscendC::BinaryRepeatParams strides(1, 0, pitch, 8, 0, 4 * pitch);
        PipeBarrier<PIPE_V>();
        if (fours > 0) {
            AscendC::MulAddDst(partials, query, keys, kLanes, fours, strides);
        }
        if (rest > 0) {
            AscendC::MulAddDst(partials[fours * kLanes], query, keys[fours * 4 * pitch * kBlockHalves],
                               rest * kBlockHalves, 1, strides);
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

private:
    UbMap* ub_ = nullptr;
};

template <>
class QueryKeyProduct<half> {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim)
    {
        ub_ = ub;
        headDim_ = headDim;
        product_.Init(ub);
    }

    // scores[head][row .. row + rows) of all heads of the block; at most 256 rows. The stream gets its `tiles` back as
    // soon as the last of the K rows is read.
    template <typename Stream>
    TOPTHETA_DEVICE inline void Compute(Stream& stream, uint32_t tiles, uint32_t row, uint32_t rows)
    {
        const uint32_t pitch = headDim_ / kBlockHalves;
        const LocalTensor<half> keys = stream.Take(tiles);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<half> query = ub_->Query<half>(ub_->Heads() * headDim_)[head * headDim_];
            product_.MultiplyFirst(keys, pitch, ub_->FirstColumns(head), rows);
            for (uint32_t column = kBlockHalves; column < headDim_; column += kBlockHalves) {
                product_.MultiplyNext(keys[column], pitch, query[column], rows);
            }
            if (head + 1 == ub_->Heads()) {
                stream.Free(tiles);
            }
            product_.FoldLanes(ub_->Scores(head, row, AlignUp(rows, kBlockFloats)), rows);
        }
    }

private:
    UbMap* ub_ = nullptr;
    uint32_t headDim_ = 0;
    ColumnProduct product_;
};

// int8 rows are cast to float16 a panel of 32 columns, which is a block of theirs, at a time. The query holds what the
// scales of the channels make of it; those of tokens multiply the scores.
template <>
class QueryKeyProduct<int8_t> {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim)
    {
        ub_ = ub;
        headDim_ = headDim;
        product_.Init(ub);
    }

    template <typename Stream>
    TOPTHETA_DEVICE inline void Compute(Stream& stream, uint32_t tiles, uint32_t row, uint32_t rows)
    {
        const LocalTensor<int8_t> keys = stream.Take(tiles);
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<half> query = ub_->Query<half>(ub_->Heads() * headDim_)[head * headDim_];
            const LocalTensor<float> scores = ub_->Scores(head, row, AlignUp(rows, kBlockFloats));
            const bool last = head + 1 == ub_->Heads();
            for (uint32_t column = 0; column < headDim_; column += kPanels * kPanel) {
                const uint32_t panels = Least(kPanels, (headDim_ - column) / kPanel);
                CastPanels(keys[column], panels, rows);
                if (last && column + panels * kPanel == headDim_) {
                    stream.Free(tiles);
                }
                for (uint32_t panel = 0; panel < panels; panel++) {
                    MultiplyPanel(panel, query[column + panel * kPanel], head, rows, column + panel == 0);
                }
            }
            product_.FoldLanes(scores, rows);
        }
    }

private:
    static constexpr uint32_t kPanel = kBlockBytes;  // columns
    static constexpr uint32_t kPanels = kHalfPieces;
    static constexpr uint32_t kPanelBlocks = kPanel / kBlockHalves;

    // Panels of the same rows, which are given back once the last of them is cast.
    TOPTHETA_DEVICE inline void CastPanels(const LocalTensor<int8_t>& keys, uint32_t panels, uint32_t rows)
    {
        for (uint32_t panel = 0; panel < panels; panel++) {
            CastPanel(PanelAt(panel), keys[panel * kPanel], rows);
        }
        PipeBarrier<PIPE_V>();
    }

    TOPTHETA_DEVICE inline LocalTensor<half> PanelAt(uint32_t panel)
    {
        return ub_->HalfPiece()[panel * kPartialBytes / sizeof(half)];
    }

    TOPTHETA_DEVICE inline void CastPanel(const LocalTensor<half>& panel, const LocalTensor<int8_t>& keys,
                                          uint32_t rows)
    {
        const uint32_t pitch = headDim_ / kPanel;
        const AscendC::UnaryRepeatParams strides(1, pitch, 8, 4 * pitch);
        const uint32_t fours = rows / 4;
        if (fours > 0) {
            AscendC::Cast(panel, keys, AscendC::RoundMode::CAST_NONE, 4 * kPanel, static_cast<uint8_t>(fours), strides);
        }
        if (rows % 4 > 0) {
            AscendC::Cast(panel[fours * 4 * kPanel], keys[fours * 4 * headDim_], AscendC::RoundMode::CAST_NONE,
                          rows % 4 * kPanel, 1, strides);
        }
    }

    TOPTHETA_DEVICE inline void MultiplyPanel(uint32_t index, const LocalTensor<half>& query, uint32_t head,
                                              uint32_t rows, bool first)
    {
        const LocalTensor<half> panel = PanelAt(index);
        if (first) {
            product_.MultiplyFirst(panel, kPanelBlocks, ub_->FirstColumns(head), rows);
        } else {
            product_.MultiplyNext(panel, kPanelBlocks, query, rows);
        }
        product_.MultiplyNext(panel[kBlockHalves], kPanelBlocks, query[kBlockHalves], rows);
    }

    UbMap* ub_ = nullptr;
    uint32_t headDim_ = 0;
    ColumnProduct product_;
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

    template <typename Stream>
    TOPTHETA_DEVICE inline void Compute(Stream& stream, uint32_t tiles, uint32_t row, uint32_t rows)
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
