// The V rows of a list, added to each head that keeps them row by row, where most heads keep few rows of what the list
// holds for all of them: a multiplication by 0 costs as much as any other.
//
// The vector unit makes a list of entries for each head, and the scalar unit hands out one instruction for each entry.
#pragma once

#include "chunk.h"
#include "weighted_sum.h"

namespace toptheta {

template <typename T>
class OwnRows {
public:
    // `widens`: of int8 rows, whether weights may be of any size.
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim, bool widens = IsWidened<T>::kValue)
    {
        ub_ = ub;
        headDim_ = headDim;
        widens_ = widens;
        columns_ = CeilDiv(headDim, kLanes);
        pieceRows_ = ub->Layout().valueTileRows;
        if (Widens()) {
            pieceRows_ = kPartialBytes / sizeof(float) / headDim / kBlockFloats * kBlockFloats;
        } else if (IsInt8<T>::kValue) {
            const uint32_t most = kHalfPieces * kPartialBytes / sizeof(half) / headDim / kBlockFloats * kBlockFloats;
            pieceRows_ = Least(pieceRows_, most);
        }
    }

    // Whether products are made of float32. Those of int8 rows take float16, unless scales of tokens are among the
    // weights, which float16 might not hold.
    TOPTHETA_DEVICE inline bool Widens() const
    {
        if constexpr (IsInt8<T>::kValue) {
            return widens_;
        } else {
            return IsWidened<T>::kValue;
        }
    }

    // Whether it is less work to add `kept` rows one by one than the rows of the list for all heads: cycles of the
    // vector unit, an instruction takes kInstruction and two for each of its repeats.
    TOPTHETA_DEVICE inline bool Pays(const RowList& list, uint32_t kept) const
    {
        const uint32_t row = 2 * columns_;
        const uint32_t pieces = CeilDiv(list.count, pieceRows_);
        const uint32_t cast = IsWidened<T>::kValue ? list.count * columns_ + pieces * kInstruction : 0;
        const uint32_t each =
            kept * (kInstruction + row) + ub_->Heads() * (kHeadCycles + pieces * kSpreadCycles) + cast;
        const uint32_t all =
            ub_->Heads() * (list.count * row + list.count * kInstruction * columns_ / kPartialRows + kSumCycles + cast);
        return list.apart && each < all;
    }

    // Begins a list that lies apart, once its weights are complete.
    TOPTHETA_DEVICE inline void Begin(const RowList& list)
    {
        pitch_ = list.weightPitch;
        if (!Widens()) {
            const int32_t all = static_cast<int32_t>(ub_->Heads() * pitch_);
            AscendC::Cast(Halves(0), WeightsOf(*ub_, list, 0), AscendC::RoundMode::CAST_RINT, all);
        }
        uint64_t unused = 0;
        for (uint32_t head = 0; head < ub_->Heads(); head++) {
            const LocalTensor<uint8_t> kept = ub_->Mask(0, ub_->Heads())[head * pitch_ / 8];
            AscendC::GatherMask(Entries(head), ub_->RowNumbers(), kept.template ReinterpretCast<uint16_t>(), true,
                                pitch_, AscendC::GatherMaskParams(1, 1, 8, 0), unused);
            next_[head] = 0;
        }
        SetFlag<HardEvent::V_S>(kEvent);
        WaitFlag<HardEvent::V_S>(kEvent);
    }

    // Rows of a tile that are added together: all of them, or as many as can be cast at a time.
    TOPTHETA_DEVICE inline uint32_t PieceRows() const { return pieceRows_; }

    // The rows of a piece as the products want them.
    template <typename Factor>
    TOPTHETA_DEVICE inline LocalTensor<Factor> Piece(const LocalTensor<T>& values, uint32_t rows)
    {
        if constexpr (!IsWidened<T>::kValue) {
            return values;
        } else {
            // nobody may have added anything of the piece before
            PipeBarrier<PIPE_V>();
            if constexpr (sizeof(Factor) == sizeof(float)) {
                return WidenRows(*ub_, values, rows * headDim_);
            } else {
                AscendC::Cast(ub_->HalfPiece(), values, AscendC::RoundMode::CAST_NONE, rows * headDim_);
                return ub_->HalfPiece();
            }
        }
    }

    // Adds the entries [first, end) of the list, whose V rows are `values`, to a head that keeps `kept` of the list.
    // Factor: of weights and V rows in a product.
    template <typename Factor>
    TOPTHETA_DEVICE inline void Add(const LocalTensor<Factor>& values, const RowList& list, uint32_t head,
                                    uint32_t kept, uint32_t first, uint32_t end)
    {
        constexpr uint32_t factorBlock = kBlockBytes / sizeof(Factor);
        const LocalTensor<uint16_t> entries = Entries(head);
        uint32_t entry = EntryAt(entries, next_[head], kept);
        if (entry >= end) {
            return;
        }
        LocalTensor<Factor> spread = Spread<Factor>();
        AscendC::Brcb(spread, Factors<Factor>(list, head)[first],
                      static_cast<uint8_t>(CeilDiv(end - first, kBlockFloats)), AscendC::BrcbRepeatParams(1, 8));
        while (entry < end) {
            AddRow(values[(entry - first) * headDim_], spread[(entry - first) * factorBlock], head);
            next_[head]++;
            entry = EntryAt(entries, next_[head], kept);
        }
    }

private:
    static constexpr uint32_t kNone = 0xffff;
    static constexpr uint32_t kSpreadHalves = kPartialBytes / 2 / sizeof(half);
    static constexpr uint32_t kInstruction = 22;   // as the documents' example of bank conflicts has it
    static constexpr uint32_t kHeadCycles = 60;    // list of a head
    static constexpr uint32_t kSpreadCycles = 35;  // weights of a head for one piece
    static constexpr uint32_t kSumCycles = 380;    // of WeightedSum for a head: zeros, weights, folding
    static constexpr uint32_t kPartialRows = 32;   // that an instruction takes in WeightedSum

    TOPTHETA_DEVICE static inline uint32_t EntryAt(const LocalTensor<uint16_t>& entries, uint32_t index, uint32_t kept)
    {
        return index < kept ? entries.GetValue(index) : kNone;
    }

    template <typename Factor>
    TOPTHETA_DEVICE inline void AddRow(const LocalTensor<Factor>& value, const LocalTensor<Factor>& weight,
                                       uint32_t head)
    {
        LocalTensor<float> accumulator = ub_->Accumulator(head, headDim_);
        const AscendC::BinaryRepeatParams strides(1, 0, 1, 8, 0, kLanes * sizeof(Factor) / kBlockBytes);
        const uint32_t full = headDim_ / kLanes;
        const uint32_t rest = headDim_ % kLanes;
        PipeBarrier<PIPE_V>();
        if (full > 0) {
            AscendC::MulAddDst(accumulator, weight, value, kLanes, static_cast<uint8_t>(full), strides);
        }
        if (rest > 0) {
            AscendC::MulAddDst(accumulator[full * kLanes], weight, value[full * kLanes], rest, 1, strides);
        }
    }

    template <typename Factor>
    TOPTHETA_DEVICE inline LocalTensor<Factor> Factors(const RowList& list, uint32_t head)
    {
        if constexpr (sizeof(Factor) == sizeof(float)) {
            return WeightsOf(*ub_, list, head);
        } else {
            return Halves(head);
        }
    }

    // `partials` begin with a block for each entry of a tile. Behind them lie float16 weights, whose entries go where
    // the float32 weights were; those of bfloat16 stay there, and the entries lie here.
    template <typename Factor>
    TOPTHETA_DEVICE inline LocalTensor<Factor> Spread()
    {
        return ub_->Partials().template ReinterpretCast<Factor>();
    }
    TOPTHETA_DEVICE inline LocalTensor<half> Halves(uint32_t head)
    {
        return ub_->Partials().template ReinterpretCast<half>()[kSpreadHalves + head * pitch_];
    }
    TOPTHETA_DEVICE inline LocalTensor<uint16_t> Entries(uint32_t head)
    {
        if (Widens()) {
            return ub_->Partials().template ReinterpretCast<uint16_t>()[kSpreadHalves + head * pitch_];
        } else {
            return ub_->Weights().template ReinterpretCast<uint16_t>()[head * pitch_];
        }
    }

    UbMap* ub_ = nullptr;
    uint32_t headDim_ = 0;
    uint32_t columns_ = 0;
    uint32_t pieceRows_ = 0;
    bool widens_ = false;
    uint32_t pitch_ = 0;  // from the weights and entries of a head to those of the next
    uint32_t next_[kMaxHeadBlock] = {};  // entries of the head that have been added
};

}  // namespace toptheta
