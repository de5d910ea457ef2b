// How many V rows are read for each KV head of a sequence, one of the statistics.
#pragma once

#include "row_output.h"
#include "sequence_lengths.h"

namespace toptheta {

template <typename Types>
class ValueRowCounts {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, const TilingData* tiling, GM_ADDR workspace, RowOutput<Types>* output)
    {
        ub_ = ub;
        tiling_ = tiling;
        output_ = output;
        units_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(workspace + tiling->valueRowsOffset));
    }

    // Rows read for a unit: straight to the output, or to the workspace where a group has several head blocks.
    TOPTHETA_DEVICE inline void Write(const Segment& segment, uint32_t rows)
    {
        if (tiling_->headBlocks == 1) {
            output_->WriteValueRows(segment.batch, segment.kvHead, rows);
            return;
        }
        output_->WriteCount(units_, UnitSlot(segment.batch, segment.kvHead, segment.headBlock), rows);
    }

    // Once all cores are done: the sum over the head blocks of each group.
    TOPTHETA_DEVICE inline void SumBlocks(uint32_t core, SequenceLengths<Types>& lengths)
    {
        const uint32_t groups = tiling_->batch * tiling_->numKeyValueHeads;
        for (uint32_t group = core; group < groups; group += tiling_->cores) {
            const uint32_t batch = group / tiling_->numKeyValueHeads;
            const uint32_t kvHead = group % tiling_->numKeyValueHeads;
            if (lengths(batch) == 0) {
                continue;
            }
            output_->WaitForCopies();
            output_->WriteValueRows(batch, kvHead, OfAllBlocks(UnitSlot(batch, kvHead, 0)));
            output_->CopiesIssued();
        }
    }

private:
    TOPTHETA_DEVICE inline uint64_t UnitSlot(uint32_t batch, uint32_t kvHead, uint32_t headBlock) const
    {
        const uint64_t group = static_cast<uint64_t>(batch) * tiling_->numKeyValueHeads + kvHead;
        return (group * tiling_->headBlocks + headBlock) * kBlockFloats;
    }

    // Rows read by all head blocks of a group, from the workspace.
    TOPTHETA_DEVICE inline uint32_t OfAllBlocks(uint64_t offset)
    {
        const uint32_t blocks = tiling_->headBlocks;
        LocalTensor<int32_t> rows = ub_->At<int32_t>(ub_->Layout().keyTiles, blocks * kBlockFloats);
        SetFlag<HardEvent::S_MTE2>(kEvent);
        WaitFlag<HardEvent::S_MTE2>(kEvent);
        AscendC::DataCopyPad(rows, units_[offset],
                             AscendC::DataCopyExtParams(static_cast<uint16_t>(blocks), sizeof(int32_t),
                                                        kBlockBytes - sizeof(int32_t), 0, 0),
                             AscendC::DataCopyPadExtParams<int32_t>(false, 0, 0, 0));
        SetFlag<HardEvent::MTE2_S>(kLengthEvent);
        WaitFlag<HardEvent::MTE2_S>(kLengthEvent);
        uint32_t sum = 0;
        for (uint32_t block = 0; block < blocks; block++) {
            sum += static_cast<uint32_t>(rows.GetValue(block * kBlockFloats));
        }
        return sum;
    }

    UbMap* ub_ = nullptr;
    const TilingData* tiling_ = nullptr;
    RowOutput<Types>* output_ = nullptr;
    GlobalTensor<int32_t> units_;
};

}  // namespace toptheta
