// Adds weight * V row for the rows in the V buffer to the accumulators, in float32.
//
// Each row is multiplied by its weight, spread over one 32-byte block, into one of up to 64 partial rows, which a tree
// of additions folds at the end: an instruction may not add twice to the same place.
#pragma once

#include "kernel_common.h"

namespace toptheta {

// float16 weights are scaled up so that small ones keep their precision; the denominator is scaled alike.
template <typename T>
struct WeightScale;
template <>
struct WeightScale<half> {
    static constexpr float kValue = 32768.0f;
};
template <>
struct WeightScale<bfloat16_t> {
    static constexpr float kValue = 1.0f;
};
template <>
struct WeightScale<int8_t> {
    static constexpr float kValue = WeightScale<half>::kValue;
};

// What products are made of: bfloat16 and int8 have no vector arithmetic.
template <typename T>
struct FactorOf {
    using Type = T;
};
template <>
struct FactorOf<bfloat16_t> {
    using Type = float;
};

template <>
struct FactorOf<int8_t> {
    using Type = float;
};

// Whether rows are cast to float32 before they are multiplied, as many as `castPiece` holds at a time.
template <typename T>
struct IsWidened {
    static constexpr bool kValue = IsBfloat16<T>::kValue || IsInt8<T>::kValue;
};

// V rows in float32.
TOPTHETA_DEVICE inline LocalTensor<float> WidenRows(UbMap& ub, const LocalTensor<bfloat16_t>& values, uint32_t count)
{
    AscendC::Cast(ub.CastPiece(), values, AscendC::RoundMode::CAST_NONE, count);
    return ub.CastPiece();
}

TOPTHETA_DEVICE inline LocalTensor<float> WidenRows(UbMap& ub, const LocalTensor<int8_t>& values, uint32_t count)
{
    AscendC::Cast(ub.HalfPiece(), values, AscendC::RoundMode::CAST_NONE, count);
    PipeBarrier<PIPE_V>();
    AscendC::Cast(ub.CastPiece(), ub.HalfPiece(), AscendC::RoundMode::CAST_NONE, count);
    return ub.CastPiece();
}

template <typename T>
class WeightedSum {
public:
    // `widens`: of int8 rows, whether weights may be of any size.
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim, bool widens = IsWidened<T>::kValue)
    {
        ub_ = ub;
        headDim_ = headDim;
        widens_ = widens;
        mostPartialRows_ = 1;
        while (mostPartialRows_ < kLanes && mostPartialRows_ * 2 * headDim <= kPartialBytes / 4) {
            mostPartialRows_ *= 2;
        }
        groupRows_ = kLanes;
        if constexpr (IsWidened<T>::kValue) {
            groupRows_ = Most(kPartialBytes / (Widens() ? 4 : 2) / headDim / 8 * 8, 8);
        }
        groupRows_ = Least(groupRows_, kLanes);
    }

    // A sum of up to `rows` rows, for one head. The rows need not be there yet.
    TOPTHETA_DEVICE inline void Begin(const LocalTensor<float>& weights, uint32_t rows)
    {
        partialRows_ = 1;
        while (partialRows_ < rows && partialRows_ < mostPartialRows_) {
            partialRows_ *= 2;
        }
        PipeBarrier<PIPE_V>();
        AscendC::Duplicate(ub_->Partials(), 0.0f, partialRows_ * headDim_);
        SpreadWeights(weights, Least(groupRows_, rows));
        isSpread_ = true;
    }

    // sum += weights[i] * values[i] for i < rows
    TOPTHETA_DEVICE inline void Add(const LocalTensor<T>& values, const LocalTensor<float>& weights, uint32_t rows)
    {
        for (uint32_t done = 0; done < rows; done += groupRows_) {
            const uint32_t count = Least(groupRows_, rows - done);
            if (!isSpread_) {
                SpreadWeights(weights[done], count);
            }
            isSpread_ = false;
            MultiplyGroup(values[done * headDim_], count);
        }
    }

    // accumulator[head] += sum
    TOPTHETA_DEVICE inline void Finish(uint32_t head)
    {
        LocalTensor<float> partials = ub_->Partials();
        LocalTensor<float> accumulator = ub_->Accumulator(head, headDim_);
        for (uint32_t step = partialRows_ / 2; step >= 1; step /= 2) {
            PipeBarrier<PIPE_V>();
            AscendC::Add(partials, partials, partials[step * headDim_], step * headDim_);
        }
        PipeBarrier<PIPE_V>();
        AscendC::Add(accumulator, accumulator, partials, headDim_);
    }

private:
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

    // One 32-byte block for each weight of a group.
    TOPTHETA_DEVICE inline void SpreadWeights(const LocalTensor<float>& weights, uint32_t rows)
    {
        const uint8_t repeats = static_cast<uint8_t>(CeilDiv(rows, kBlockFloats));
        if (Widens()) {
            AscendC::Brcb(ub_->Spread<float>(), weights, repeats, AscendC::BrcbRepeatParams(1, 8));
        } else {
            LocalTensor<half> source = ub_->SpreadSource<half>();
            AscendC::Cast(source, weights, AscendC::RoundMode::CAST_RINT, AlignUp(rows, kBlockFloats));
            PipeBarrier<PIPE_V>();
            AscendC::Brcb(ub_->Spread<half>(), source, repeats, AscendC::BrcbRepeatParams(1, 8));
        }
    }

    TOPTHETA_DEVICE inline void MultiplyGroup(const LocalTensor<T>& values, uint32_t rows)
    {
        if constexpr (IsInt8<T>::kValue) {
            if (!Widens()) {
                AscendC::Cast(ub_->HalfPiece(), values, AscendC::RoundMode::CAST_NONE, rows * headDim_);
                Multiply(ub_->Spread<half>(), ub_->HalfPiece(), rows);
                return;
            }
        }
        if constexpr (IsWidened<T>::kValue) {
            Multiply(ub_->Spread<float>(), WidenRows(*ub_, values, rows * headDim_), rows);
        } else {
            Multiply(ub_->Spread<half>(), values, rows);
        }
    }

    // partials[row % partialRows_] += spread[row] * values[row]
    template <typename U>
    TOPTHETA_DEVICE inline void Multiply(const LocalTensor<U>& spread, const LocalTensor<U>& values, uint32_t rows)
    {
        LocalTensor<float> partials = ub_->Partials();
        constexpr uint32_t blockElements = kBlockBytes / sizeof(U);
        const uint8_t to = headDim_ / kBlockFloats;
        const uint8_t from = headDim_ / blockElements;
        const AscendC::BinaryRepeatParams strides(1, 0, 1, to, 1, from);
        for (uint32_t done = 0; done < rows; done += partialRows_) {
            const uint8_t repeats = Least(partialRows_, rows - done);
            PipeBarrier<PIPE_V>();
            for (uint32_t column = 0; column < headDim_; column += kLanes) {
                AscendC::MulAddDst(partials[column], spread[done * blockElements], values[done * headDim_ + column],
                                   Least(kLanes, headDim_ - column), repeats, strides);
            }
        }
    }

    UbMap* ub_ = nullptr;
    uint32_t headDim_ = 0;
    uint32_t mostPartialRows_ = 1;
    uint32_t partialRows_ = 1;  // of the sum at work
    uint32_t groupRows_ = kLanes;
    bool widens_ = false;
    bool isSpread_ = false;  // the weights of the group that is added next
};

}  // namespace toptheta
