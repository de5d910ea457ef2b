// What the cube multiplies K rows by, on its way to L1: the queries themselves, or the int8 parts of them that the
// vector cores of the block have left in the workspace (query_parts.h).
#pragma once

#include "cube_layout.h"
#include "kernel_tensors.h"
#include "query_slots.h"

namespace toptheta {

// What the cube adds products up in.
template <typename T>
struct ProductOf {
    using Type = float;
};
template <>
struct ProductOf<int8_t> {
    using Type = int32_t;
};

template <typename Types>
class CubeQueries {
public:
    using T = typename Types::Key;

    TOPTHETA_DEVICE inline void Init(const TilingData& tiling, GM_ADDR query, GM_ADDR workspace)
    {
        tiling_ = &tiling;
        rows_.SetGlobalBuffer(
            reinterpret_cast<__gm__ T*>(IsInt8<T>::kValue ? workspace + QuerySlotsOffset(tiling) : query));
    }

    // Both vector cores have made the parts for their first segment, or for all.
    TOPTHETA_DEVICE inline void Await(uint32_t segments)
    {
        for (; awaited_ < Least(segments, kQueryFlags); awaited_++) {
            AscendC::CrossCoreWaitFlag(PartsReady(awaited_));
        }
    }

    TOPTHETA_DEVICE inline void End()
    {
        if constexpr (IsInt8<T>::kValue) {
            Await(kQueryFlags);
        }
    }

    // `core`: the vector core that works on the segment.
    TOPTHETA_DEVICE inline void Load(const LocalTensor<T>& to, const Segment& segment, uint32_t core = 0)
    {
        const HeadRange range = HeadsOf<Types::kTokens>(*tiling_, segment);
        if constexpr (IsInt8<T>::kValue) {
            const uint32_t rows = ProductRows(range.heads, sizeof(T));
            LoadRun(to, {0, rows, QuerySlotOf(*tiling_, segment, core), tiling_->headDim});
        } else {
            RowRuns<Types::kTokens> runs(*tiling_, range);
            RowRun run;
            while (runs.Next(run)) {
                LoadRun(to[run.first * kRowPiece], run);
            }
            if (range.heads == 1) {
                // the cube would take a single row for a vector and expect another order of its elements
                LoadRun(to[kRowPiece], run);
            }
        }
    }

private:
    static constexpr uint32_t kRowPiece = kBlockBytes / sizeof(T);  // elements of a row in a fractal

    TOPTHETA_DEVICE inline void LoadRun(const LocalTensor<T>& to, const RowRun& run)
    {
        AscendC::Nd2NzParams copy;
        copy.ndNum = 1;
        copy.nValue = static_cast<uint16_t>(run.rows);
        copy.dValue = static_cast<uint16_t>(tiling_->headDim);
        copy.srcNdMatrixStride = 0;
        copy.srcDValue = static_cast<uint16_t>(run.step);
        copy.dstNzC0Stride = kFractal;
        copy.dstNzNStride = 1;
        copy.dstNzMatrixStride = 0;
        AscendC::DataCopy(to, rows_[run.element], copy);
    }

    const TilingData* tiling_ = nullptr;
    GlobalTensor<T> rows_;
    uint32_t awaited_ = 0;
};

}  // namespace toptheta
