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

template <typename T>
class CubeQueries {
public:
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
        const HeadRange range = HeadsOf(*tiling_, segment);
        const uint32_t rows = ProductRows(range.heads, sizeof(T));
        AscendC::Nd2NzParams copy;
        // the cube would take a single row for a vector and expect another order of its elements
        copy.ndNum = rows == 1 ? 2 : 1;
        copy.nValue = static_cast<uint16_t>(rows);
        copy.dValue = static_cast<uint16_t>(tiling_->headDim);
        copy.srcNdMatrixStride = 0;
        copy.srcDValue = static_cast<uint16_t>(tiling_->headDim);
        copy.dstNzC0Stride = kFractal;
        copy.dstNzNStride = 1;
        copy.dstNzMatrixStride = kFractal;
        AscendC::DataCopy(to, rows_[FirstElement(segment, range, core)], copy);
    }

private:
    TOPTHETA_DEVICE inline uint64_t FirstElement(const Segment& segment, const HeadRange& range, uint32_t core) const
    {
        if constexpr (IsInt8<T>::kValue) {
            return QuerySlotOf(*tiling_, segment, core);
        } else {
            return FirstRow(*tiling_, range) * tiling_->headDim;
        }
    }

    const TilingData* tiling_ = nullptr;
    GlobalTensor<T> rows_;
    uint32_t awaited_ = 0;
};

}  // namespace toptheta
