// Valid rows and first row of each sequence, read from device tensors.
#pragma once

#include "kernel_common.h"

namespace toptheta {

// Of one length or start; both tensors have the same type.
TOPTHETA_DEVICE inline uint32_t IntegerBytes(const TilingData& tiling)
{
    return tiling.lengthBytes > 0 ? tiling.lengthBytes : tiling.startBytes;
}

// A slice of each tensor at a time, through the Unified Buffer.
class LengthSlices {
public:
    TOPTHETA_DEVICE inline void Init(UbMap& ub, const TilingData& tiling, GM_ADDR lengths, GM_ADDR starts)
    {
        tiling_ = &tiling;
        bytes_ = IntegerBytes(tiling);
        lengths_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(lengths));
        starts_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(starts));
        lengthSlice_ = ub.At<uint8_t>(ub.Layout().lengths, kLengthSlice);
        startSlice_ = ub.At<uint8_t>(ub.Layout().lengths + kLengthSlice, kLengthSlice);
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

private:
    // Makes sure that the slices hold this sequence.
    TOPTHETA_DEVICE inline void Load(uint32_t sequence)
    {
        const uint32_t perSlice = kLengthSlice / bytes_;
        const uint32_t begin = sequence / perSlice * perSlice;
        if (loaded_ && begin == begin_) {
            return;
        }
        const uint32_t bytes = Least(perSlice, tiling_->batch - begin) * bytes_;
        const AscendC::DataCopyExtParams copy(1, bytes, 0, 0, 0);
        const AscendC::DataCopyPadExtParams<uint8_t> noPad(false, 0, 0, 0);
        const uint64_t offset = static_cast<uint64_t>(begin) * bytes_;
        SetFlag<HardEvent::S_MTE2>(kEvent);
        WaitFlag<HardEvent::S_MTE2>(kEvent);
        if (tiling_->lengthBytes > 0) {
            AscendC::DataCopyPad(lengthSlice_, lengths_[offset], copy, noPad);
        }
        if (tiling_->startBytes > 0) {
            AscendC::DataCopyPad(startSlice_, starts_[offset], copy, noPad);
        }
        SetFlag<HardEvent::MTE2_S>(kLengthEvent);
        WaitFlag<HardEvent::MTE2_S>(kLengthEvent);
        loaded_ = true;
        begin_ = begin;
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
    LocalTensor<uint8_t> lengthSlice_;
    LocalTensor<uint8_t> startSlice_;
    uint32_t bytes_ = 0;  // of one integer
    uint32_t begin_ = 0;
    bool loaded_ = false;
};

// A cube core has no Unified Buffer: its scalar unit reads the tensors through the data cache. No core writes them.
class LengthTensors {
public:
    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, GM_ADDR lengths, GM_ADDR starts)
    {
        wide_ = IntegerBytes(tiling) == 8;
        lengths_ = lengths;
        starts_ = starts;
    }

    TOPTHETA_DEVICE inline int64_t Length(uint32_t sequence) { return Value(lengths_, sequence); }
    TOPTHETA_DEVICE inline int64_t Start(uint32_t sequence) { return Value(starts_, sequence); }

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

    GM_ADDR lengths_ = nullptr;
    GM_ADDR starts_ = nullptr;
    bool wide_ = false;
};

// What the sequences hold, inside the cache whatever the tensors say.
template <typename Integers>
class ValidRows {
public:
    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, const Integers& integers)
    {
        tiling_ = &tiling;
        integers_ = integers;
    }

    TOPTHETA_DEVICE inline uint32_t operator()(uint32_t sequence)
    {
        const uint32_t room = tiling_->capacity - Start(sequence);
        return tiling_->lengthBytes > 0 ? Clamp(integers_.Length(sequence), room) : room;
    }

    TOPTHETA_DEVICE inline uint32_t Start(uint32_t sequence)
    {
        return tiling_->startBytes > 0 ? Clamp(integers_.Start(sequence), tiling_->capacity) : 0;
    }

    // The work of all cores, and the share of one of them (work_split.h).
    TOPTHETA_DEVICE inline WorkTotal Total()
    {
        return TotalWork(tiling_->batch, tiling_->numKeyValueHeads * tiling_->headBlocks, tiling_->cores, *this);
    }

    TOPTHETA_DEVICE inline SegmentIterator<ValidRows> SegmentsOf(const WorkTotal& total, uint32_t core)
    {
        return SegmentIterator<ValidRows>(total, core, tiling_->numKeyValueHeads, tiling_->headBlocks, *this);
    }

private:
    const TilingData* tiling_ = nullptr;
    Integers integers_;
};

using SequenceLengths = ValidRows<LengthSlices>;

}  // namespace toptheta
