// Valid rows, first row and query tokens of each sequence, read from device tensors.
#pragma once

#include "kernel_common.h"

namespace toptheta {

struct LengthInputs {
    GM_ADDR lengths;
    GM_ADDR starts;
    GM_ADDR tokens;
};

// A slice of each tensor at a time, through the Unified Buffer. `kTokens`: there may be several query tokens.
template <bool kTokens>
class LengthSlices {
public:
    TOPTHETA_DEVICE inline void Init(UbMap& ub, const TilingData& tiling, const LengthInputs& inputs)
    {
        tiling_ = &tiling;
        bytes_ = tiling.integerBytes;
        lengths_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(inputs.lengths));
        starts_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(inputs.starts));
        lengthSlice_ = ub.At<uint8_t>(ub.Layout().lengths, kLengthSlice);
        startSlice_ = ub.At<uint8_t>(ub.Layout().lengths + kLengthSlice, kLengthSlice);
        if constexpr (kTokens) {
            tokens_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(inputs.tokens));
            tokenSlice_ = ub.At<uint8_t>(ub.Layout().lengths + 2 * kLengthSlice, kLengthSlice);
        }
    }

    TOPTHETA_DEVICE inline int64_t Length(uint32_t sequence)
    {
        Load(sequence);
        return Value(lengthSlice_, sequence);
    }

    TOPTHETA_DEVICE inline int64_t Start(uint32_t sequence)
    {
        Load(sequence);
        return Value(startSlice_, sequence);
    }

    TOPTHETA_DEVICE inline int64_t Tokens(uint32_t sequence)
    {
        Load(sequence);
        return Value(tokenSlice_, sequence);
    }

private:
    // Makes sure that the slices hold this sequence.
    TOPTHETA_DEVICE inline void Load(uint32_t sequence)
    {
        const uint32_t perSlice = kLengthSlice / bytes_;
        const uint32_t begin = sequence / perSlice * perSlice;
        if (loaded_ && begin == begin_) {
            return;
        }
        const uint32_t count = Least(perSlice, tiling_->batch - begin);
        SetFlag<HardEvent::S_MTE2>(kEvent);
        WaitFlag<HardEvent::S_MTE2>(kEvent);
        LoadSlice(InputIndex::kActualSeqLengths, lengthSlice_, lengths_, begin, count);
        LoadSlice(InputIndex::kKeyStart, startSlice_, starts_, begin, count);
        if constexpr (kTokens) {
            LoadSlice(InputIndex::kActualQueryLengths, tokenSlice_, tokens_, begin, count);
        }
        SetFlag<HardEvent::MTE2_S>(kLengthEvent);
        WaitFlag<HardEvent::MTE2_S>(kLengthEvent);
        loaded_ = true;
        begin_ = begin;
    }

    TOPTHETA_DEVICE inline void LoadSlice(uint32_t input, const LocalTensor<uint8_t>& to,
                                          const GlobalTensor<uint8_t>& from, uint32_t begin, uint32_t count)
    {
        if (Has(*tiling_, input)) {
            AscendC::DataCopyPad(to, from[static_cast<uint64_t>(begin) * bytes_],
                                 AscendC::DataCopyExtParams(1, count * bytes_, 0, 0, 0),
                                 AscendC::DataCopyPadExtParams<uint8_t>(false, 0, 0, 0));
        }
    }

    TOPTHETA_DEVICE inline int64_t Value(LocalTensor<uint8_t>& slice, uint32_t sequence)
    {
        const uint32_t index = sequence - begin_;
        if (bytes_ == 8) {
            return slice.ReinterpretCast<int64_t>().GetValue(index);
        }
        return slice.ReinterpretCast<int32_t>().GetValue(index);
    }

    const TilingData* tiling_ = nullptr;
    GlobalTensor<uint8_t> lengths_;
    GlobalTensor<uint8_t> starts_;
    GlobalTensor<uint8_t> tokens_;
    LocalTensor<uint8_t> lengthSlice_;
    LocalTensor<uint8_t> startSlice_;
    LocalTensor<uint8_t> tokenSlice_;
    uint32_t bytes_ = 0;  // of one integer
    uint32_t begin_ = 0;
    bool loaded_ = false;
};

// A cube core has no Unified Buffer: its scalar unit reads the tensors through the data cache. No core writes them.
class LengthTensors {
public:
    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, const LengthInputs& inputs)
    {
        wide_ = tiling.integerBytes == 8;
        inputs_ = inputs;
    }

    TOPTHETA_DEVICE inline int64_t Length(uint32_t sequence) { return Value(inputs_.lengths, sequence); }
    TOPTHETA_DEVICE inline int64_t Start(uint32_t sequence) { return Value(inputs_.starts, sequence); }
    TOPTHETA_DEVICE inline int64_t Tokens(uint32_t sequence) { return Value(inputs_.tokens, sequence); }

private:
    TOPTHETA_DEVICE inline int64_t Value(GM_ADDR tensor, uint32_t sequence)
    {
        if (wide_) {
            GlobalTensor<int64_t> values;
            values.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(tensor));
            return values.GetValue(sequence);
        }
        GlobalTensor<int32_t> values;
        values.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(tensor));
        return values.GetValue(sequence);
    }

    LengthInputs inputs_ = {nullptr, nullptr, nullptr};
    bool wide_ = false;
};

// What the sequences hold, inside the cache whatever the tensors say. `kTokens`: a sequence may have none of several
// query tokens, and then nothing of it is read.
template <typename Integers, bool kTokens>
class ValidRows {
public:
    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, const Integers& integers)
    {
        tiling_ = &tiling;
        integers_ = integers;
    }

    TOPTHETA_DEVICE inline uint32_t operator()(uint32_t sequence)
    {
        if constexpr (kTokens) {
            if (Has(*tiling_, InputIndex::kActualQueryLengths) && integers_.Tokens(sequence) <= 0) {
                return 0;
            }
        }
        const uint32_t room = tiling_->capacity - Start(sequence);
        return Has(*tiling_, InputIndex::kActualSeqLengths) ? Clamp(integers_.Length(sequence), room) : room;
    }

    TOPTHETA_DEVICE inline uint32_t Start(uint32_t sequence)
    {
        return Has(*tiling_, InputIndex::kKeyStart) ? Clamp(integers_.Start(sequence), tiling_->capacity) : 0;
    }

    // Real query tokens of a sequence with `rows` valid rows.
    TOPTHETA_DEVICE inline uint32_t Tokens(uint32_t sequence, uint32_t rows)
    {
        if constexpr (!kTokens) {
            return 1;
        }
        const uint32_t most = Least(tiling_->queryTokens, rows);
        return Has(*tiling_, InputIndex::kActualQueryLengths) ? Clamp(integers_.Tokens(sequence), most) : most;
    }

    // The work of all cores, and the share of one of them (work_split.h).
    TOPTHETA_DEVICE inline WorkTotal Total()
    {
        const uint32_t sharers = Sharers();
        return TotalWork(tiling_->batch, tiling_->numKeyValueHeads * tiling_->headBlocks / sharers,
                         tiling_->cores / sharers, *this);
    }

    TOPTHETA_DEVICE inline SegmentIterator<ValidRows> SegmentsOf(const WorkTotal& total, uint32_t core)
    {
        const uint32_t sharers = Sharers();
        return SegmentIterator<ValidRows>(total, core / sharers, tiling_->numKeyValueHeads,
                                          tiling_->headBlocks / sharers, *this, sharers, core % sharers);
    }

    // Vector cores that take the same keys.
    TOPTHETA_DEVICE inline uint32_t Sharers() const { return kTokens ? SharersOfKeys(*tiling_) : 1; }

private:
    const TilingData* tiling_ = nullptr;
    Integers integers_;
};

template <typename Types>
using SequenceLengths = ValidRows<LengthSlices<Types::kTokens>, Types::kTokens>;

}  // namespace toptheta
