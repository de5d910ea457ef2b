// Rows of the K and V caches: one address formula for contiguous, strided and paged caches, in 64 bits.
#pragma once

#include "key_sample.h"

namespace toptheta {

// Page numbers of one sequence, read ahead in slices of 64 pages into a ring.
class BlockTable {
public:
    // `ring`: 0 or 1, each with two event ids from `event` on.
    TOPTHETA_DEVICE inline void Init(UbMap& ub, const TilingData& tiling, GM_ADDR blockTable, uint32_t ring,
                                     int32_t event)
    {
        constexpr uint32_t pages = kTableSlices * kTableSlicePages;
        width_ = tiling.blockTableWidth;
        lastBlock_ = tiling.blocks - 1;
        event_ = event;
        table_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(blockTable));
        ring_ = ub.At<int32_t>(ub.Layout().blockTable + ring * pages * sizeof(int32_t), pages);
    }

    // Starts with the slice that holds page `first` of a sequence that uses `pages` pages.
    TOPTHETA_DEVICE inline void Begin(uint32_t sequence, uint32_t first, uint32_t pages)
    {
        End();
        row_ = static_cast<uint64_t>(sequence) * width_;
        pages_ = pages;
        ready_ = first / kTableSlicePages;
        issued_ = ready_;
        Issue();
        Issue();
    }

    // The block that holds a page of the sequence, inside the cache whatever the table says.
    TOPTHETA_DEVICE inline int64_t Page(uint32_t page)
    {
        const uint32_t slice = page / kTableSlicePages;
        while (ready_ <= slice) {
            WaitFlag<HardEvent::MTE2_S>(event_ + ready_ % 2);
            ready_++;
            Issue();
        }
        return Clamp(ring_.GetValue(page % (kTableSlices * kTableSlicePages)), lastBlock_);
    }

    TOPTHETA_DEVICE inline void End()
    {
        for (; ready_ < issued_; ready_++) {
            WaitFlag<HardEvent::MTE2_S>(event_ + ready_ % 2);
        }
    }

private:
    // Loads the next slice; entries past the last page in use are never read.
    TOPTHETA_DEVICE inline void Issue()
    {
        const uint32_t begin = issued_ * kTableSlicePages;
        if (begin >= pages_) {
            return;
        }
        const uint32_t bytes = Least(kTableSlicePages, pages_ - begin) * sizeof(int32_t);
        SetFlag<HardEvent::S_MTE2>(kEvent);
        WaitFlag<HardEvent::S_MTE2>(kEvent);
        AscendC::DataCopyPad(ring_[issued_ % kTableSlices * kTableSlicePages], table_[row_ + begin],
                             AscendC::DataCopyExtParams(1, bytes, 0, 0, 0),
                             AscendC::DataCopyPadExtParams<int32_t>(false, 0, 0, 0));
        SetFlag<HardEvent::MTE2_S>(event_ + issued_ % 2);
        issued_++;
    }

    GlobalTensor<int32_t> table_;
    LocalTensor<int32_t> ring_;
    uint64_t row_ = 0;
    int32_t event_ = 0;
    uint32_t width_ = 0;
    uint32_t lastBlock_ = 0;
    uint32_t pages_ = 0;
    uint32_t ready_ = 0;   // slices below it have arrived
    uint32_t issued_ = 0;  // slices below it are on the way
};

// The place of the rows of one (sequence, KV head) of a cache, in elements. `Table` gives the pages of a sequence.
template <typename Table>
class RowAddresses {
public:
    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, const CacheStrides& strides, const Table& table)
    {
        strides_ = strides;
        table_ = table;
        blockSize_ = tiling.blockSize;
        blockShift_ = 0;
        while (blockSize_ > 0 && (2u << blockShift_) <= blockSize_) {
            blockShift_++;
        }
        isPower_ = (1u << blockShift_) == blockSize_;
    }

    // The rows of one (sequence, KV head), to be read from `row` on; `start` is the first valid row of the sequence,
    // `rows` their number.
    TOPTHETA_DEVICE inline void Begin(uint32_t sequence, uint32_t kvHead, uint32_t start, uint32_t row, uint32_t rows)
    {
        base_ = static_cast<int64_t>(kvHead) * strides_.head + static_cast<int64_t>(start) * strides_.row;
        if (blockSize_ == 0) {
            base_ += static_cast<int64_t>(sequence) * strides_.outer;
        } else {
            table_.Begin(sequence, row / blockSize_, CeilDiv(rows, blockSize_));
        }
    }

    TOPTHETA_DEVICE inline void End() { table_.End(); }

    TOPTHETA_DEVICE inline int64_t OffsetOf(uint32_t row) { return OffsetIn(row, base_, strides_.outer, strides_.row); }

    // The same row of another tensor: from `base` on, with strides of its own.
    TOPTHETA_DEVICE inline int64_t OffsetIn(uint32_t row, int64_t base, int64_t outerStride, int64_t rowStride)
    {
        if (blockSize_ == 0) {
            return base + static_cast<int64_t>(row) * rowStride;
        }
        // the scalar unit divides slowly, and block sizes are powers of two as a rule
        const uint32_t index = isPower_ ? row >> blockShift_ : row / blockSize_;
        const int64_t page = table_.Page(index);
        return base + page * outerStride + static_cast<int64_t>(row - index * blockSize_) * rowStride;
    }

    // How many of the `rows` rows from `row` on lie one row stride apart: up to the end of the page.
    TOPTHETA_DEVICE inline uint32_t RunLength(uint32_t row, uint32_t rows) const
    {
        return blockSize_ > 0 ? Least(rows, blockSize_ - row % blockSize_) : rows;
    }

    TOPTHETA_DEVICE inline int64_t RowStride() const { return strides_.row; }

private:
    CacheStrides strides_ = {0, 0, 0};
    Table table_;
    int64_t base_ = 0;
    uint32_t blockSize_ = 0;
    uint32_t blockShift_ = 0;
    bool isPower_ = false;
};

// Scales of tokens of an int8 cache: the place of those of one (sequence, KV head).
class RowScales {
public:
    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, const ScaleTiling& scales, GM_ADDR scale)
    {
        strides_ = scales;
        paged_ = tiling.blockSize != 0;
        scales_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(scale));
    }

    TOPTHETA_DEVICE inline void Begin(uint32_t sequence, uint32_t kvHead, uint32_t start)
    {
        base_ = static_cast<int64_t>(kvHead) * strides_.head + start;
        if (!paged_) {
            base_ += static_cast<int64_t>(sequence) * strides_.outer;
        }
    }

    // Otherwise there is one for each channel, or none.
    TOPTHETA_DEVICE inline bool PerToken() const { return strides_.perToken != 0; }

    // Copies those of `rows` rows that follow one another; the rows' addresses know the pages.
    template <typename Addresses>
    TOPTHETA_DEVICE inline void Load(const LocalTensor<float>& to, Addresses& addresses, uint32_t row, uint32_t rows)
    {
        for (uint32_t done = 0; done < rows;) {
            const uint32_t count = addresses.RunLength(row + done, rows - done);
            const int64_t from = addresses.OffsetIn(row + done, base_, strides_.outer, 1);
            AscendC::DataCopyPad(to[done], scales_[from], AscendC::DataCopyExtParams(1, count * sizeof(float), 0, 0, 0),
                                 AscendC::DataCopyPadExtParams<float>(false, 0, 0, 0));
            done += count;
        }
    }

    template <typename Addresses>
    TOPTHETA_DEVICE inline void LoadOne(const LocalTensor<float>& to, Addresses& addresses, uint32_t row)
    {
        AscendC::DataCopyPad(to, scales_[addresses.OffsetIn(row, base_, strides_.outer, 1)],
                             AscendC::DataCopyExtParams(1, sizeof(float), 0, 0, 0),
                             AscendC::DataCopyPadExtParams<float>(true, 0, kBlockFloats - 1, 0.0f));
    }

private:
    GlobalTensor<float> scales_;
    ScaleTiling strides_ = {0, 0, 0, 0};
    int64_t base_ = 0;
    bool paged_ = false;
};

// K or V as tiling wants it read. The hint is part of the tensor's address, which a build with the toolkit's check of
// addresses would not know.
template <typename T>
TOPTHETA_DEVICE inline GlobalTensor<T> CacheTensor(const TilingData& tiling, GM_ADDR cache)
{
    GlobalTensor<T> tensor;
    tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(cache));
#ifndef ASCENDC_OOM
    if (tiling.pastL2 != 0) {
        tensor.SetL2CacheHint(AscendC::CacheMode::CACHE_MODE_DISABLE);
    }
#endif
    return tensor;
}

// Copies rows of a cache into the Unified Buffer.
template <typename T>
class CacheRows {
public:
    TOPTHETA_DEVICE inline void Init(UbMap& ub, const TilingData& tiling, const CacheStrides& strides, GM_ADDR cache,
                                     GM_ADDR blockTable, uint32_t ring, int32_t event)
    {
        headDim_ = tiling.headDim;
        cache_ = CacheTensor<T>(tiling, cache);
        BlockTable table;
        table.Init(ub, tiling, blockTable, ring, event);
        addresses_.Init(tiling, strides, table);
    }

    TOPTHETA_DEVICE inline void Begin(uint32_t sequence, uint32_t kvHead, uint32_t start, uint32_t row, uint32_t rows)
    {
        addresses_.Begin(sequence, kvHead, start, row, rows);
    }

    TOPTHETA_DEVICE inline void End() { addresses_.End(); }

    // Copies `rows` rows that follow one another in the sequence; a paged cache takes one command per page.
    TOPTHETA_DEVICE inline void LoadTile(const LocalTensor<T>& to, uint32_t row, uint32_t rows)
    {
        uint32_t done = 0;
        while (done < rows) {
            const uint32_t count = addresses_.RunLength(row + done, rows - done);
            CopyRows(to[done * headDim_], addresses_.OffsetOf(row + done), count);
            done += count;
        }
    }

    // Copies keys [number, number + count) of a sample.
    TOPTHETA_DEVICE inline void LoadSample(const LocalTensor<T>& to, const KeySample& sample, uint32_t number,
                                           uint32_t count)
    {
        for (uint32_t done = 0; done < count;) {
            const uint32_t row = sample.RowOf(number + done);
            const uint32_t run = sample.RunLength(number + done, count - done);
            const bool pair = run == 1 && done + 1 < count;
            if (pair) {
                LoadPair(to[done * headDim_], row, sample.RowOf(number + done + 1));
            } else {
                LoadTile(to[done * headDim_], row, run);
            }
            done += pair ? 2 : run;
        }
    }

    // Copies the scales of `rows` rows that follow one another in the sequence.
    TOPTHETA_DEVICE inline void LoadScales(const LocalTensor<float>& to, RowScales& scales, uint32_t row, uint32_t rows)
    {
        scales.Load(to, addresses_, row, rows);
    }

    // Copies the scale of one row, and zeros behind it to the end of the block.
    TOPTHETA_DEVICE inline void LoadScale(const LocalTensor<float>& to, RowScales& scales, uint32_t row)
    {
        scales.LoadOne(to, addresses_, row);
    }

    // Copies row `first` and row `second` with one command where the gap allows it.
    TOPTHETA_DEVICE inline void LoadPair(const LocalTensor<T>& to, uint32_t first, uint32_t second)
    {
        const uint32_t rowBytes = headDim_ * sizeof(T);
        const int64_t from = addresses_.OffsetOf(first);
        const int64_t gap = (addresses_.OffsetOf(second) - from) * static_cast<int64_t>(sizeof(T)) - rowBytes;
        if (gap < 0 || gap >= kMaxGap) {
            CopyRows(to, from, 1);
            CopyRows(to[headDim_], addresses_.OffsetOf(second), 1);
            return;
        }
        const AscendC::DataCopyExtParams two(2, rowBytes, static_cast<uint32_t>(gap), 0, 0);
        AscendC::DataCopyPad(to, cache_[from], two, AscendC::DataCopyPadExtParams<T>(false, 0, 0, T()));
    }

    TOPTHETA_DEVICE inline void LoadRow(const LocalTensor<T>& to, uint32_t row)
    {
        CopyRows(to, addresses_.OffsetOf(row), 1);
    }

private:
    // The stride field has 32 bits; the toolkit's own kernels stay below 2^31 - 1.
    static constexpr int64_t kMaxGap = 2147483647;

    TOPTHETA_DEVICE inline void CopyRows(const LocalTensor<T>& to, int64_t from, uint32_t rows)
    {
        const uint32_t rowBytes = headDim_ * sizeof(T);
        const int64_t gap = addresses_.RowStride() * static_cast<int64_t>(sizeof(T)) - rowBytes;
        const AscendC::DataCopyPadExtParams<T> noPad(false, 0, 0, T());
        if (gap == 0 || rows == 1) {
            AscendC::DataCopyPad(to, cache_[from], AscendC::DataCopyExtParams(1, rows * rowBytes, 0, 0, 0), noPad);
            return;
        }
        AscendC::DataCopyPad(
            to, cache_[from],
            AscendC::DataCopyExtParams(static_cast<uint16_t>(rows), rowBytes, static_cast<uint32_t>(gap), 0, 0), noPad);
    }

    GlobalTensor<T> cache_;
    RowAddresses<BlockTable> addresses_;
    uint32_t headDim_ = 0;
};

}  // namespace toptheta
