// K rows of a cache on their way to L1, in the order of fractals that the cube reads.
#pragma once

#include "cache_rows.h"
#include "cube_layout.h"

namespace toptheta {

// Page numbers of one sequence, read by the scalar unit through the data cache: a cube core has no Unified Buffer.
class ScalarBlockTable {
public:
    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, GM_ADDR blockTable)
    {
        width_ = tiling.blockTableWidth;
        lastBlock_ = tiling.blocks - 1;
        table_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(blockTable));
    }

    TOPTHETA_DEVICE inline void Begin(uint32_t sequence, uint32_t, uint32_t)
    {
        row_ = static_cast<uint64_t>(sequence) * width_;
    }

    // The block that holds a page of the sequence, inside the cache whatever the table says.
    TOPTHETA_DEVICE inline int64_t Page(uint32_t page) { return Clamp(table_.GetValue(row_ + page), lastBlock_); }

    TOPTHETA_DEVICE inline void End() {}

private:
    GlobalTensor<int32_t> table_;
    uint64_t row_ = 0;
    uint32_t width_ = 0;
    uint32_t lastBlock_ = 0;
};

template <typename T>
class CubeKeyRows {
public:
    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, GM_ADDR key, GM_ADDR blockTable)
    {
        headDim_ = tiling.headDim;
        cache_ = CacheTensor<T>(tiling, key);
        ScalarBlockTable table;
        table.Init(tiling, blockTable);
        addresses_.Init(tiling, tiling.key, table);
    }

    // `start` is the first valid row of the segment's sequence.
    TOPTHETA_DEVICE inline void Begin(const Segment& segment, uint32_t start)
    {
        addresses_.Begin(segment.batch, segment.kvHead, start, segment.rowBegin, segment.unitRows);
    }

    // Keys [number, number + count) of a sample, in the same order of fractals.
    TOPTHETA_DEVICE inline void LoadSample(const LocalTensor<T>& to, const KeySample& sample, uint32_t number,
                                           uint32_t count)
    {
        AscendC::Nd2NzParams copy = CopyOf(count, 1);
        for (uint32_t done = 0; done < count;) {
            const uint32_t run = sample.RunLength(number + done, count - done);
            CopyRun(to, copy, sample.RowOf(number + done), done, run, 1);
            done += run;
        }
    }

    // Columns in blocks of 32 bytes, one behind the other, each with all rows; a paged cache takes one command per
    // page. With a `fold` of 2 or 4, so many rows are copied as one (a page has a multiple of 16), and the columns of
    // the second ones come behind those of the first ones.
    TOPTHETA_DEVICE inline void Load(const LocalTensor<T>& to, uint32_t row, uint32_t rows, uint32_t fold)
    {
        AscendC::Nd2NzParams copy = CopyOf(rows, fold);
        CopyRun(to, copy, row, 0, rows, fold);
    }

private:
    TOPTHETA_DEVICE inline AscendC::Nd2NzParams CopyOf(uint32_t rows, uint32_t fold) const
    {
        AscendC::Nd2NzParams copy;
        copy.ndNum = 1;
        copy.dValue = static_cast<uint16_t>(fold * headDim_);
        copy.srcNdMatrixStride = 0;
        copy.srcDValue = static_cast<uint16_t>(fold * addresses_.RowStride());  // tiling has checked its range
        copy.dstNzC0Stride = static_cast<uint16_t>(AlignUp(rows / fold, kFractal));
        copy.dstNzNStride = 1;
        copy.dstNzMatrixStride = 0;
        return copy;
    }

    // Rows that follow one another, to place `at` of the copy.
    TOPTHETA_DEVICE inline void CopyRun(const LocalTensor<T>& to, AscendC::Nd2NzParams& copy, uint32_t row, uint32_t at,
                                        uint32_t rows, uint32_t fold)
    {
        for (uint32_t done = 0; done < rows;) {
            const uint32_t count = addresses_.RunLength(row + done, rows - done);
            copy.nValue = static_cast<uint16_t>(count / fold);
            AscendC::DataCopy(to[(at + done) / fold * kPiece], cache_[addresses_.OffsetOf(row + done)], copy);
            done += count;
        }
    }

    static constexpr uint32_t kPiece = kBlockBytes / sizeof(T);  // elements of a row in a fractal

    GlobalTensor<T> cache_;
    RowAddresses<ScalarBlockTable> addresses_;
    uint32_t headDim_ = 0;
};

}  // namespace toptheta
