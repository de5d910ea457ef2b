// The ring of K tiles: copies run ahead of the computation by as many tiles as the ring has slots.
#pragma once

#include "cache_rows.h"

namespace toptheta {

template <typename T>
class KeyStream {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim, CacheRows<T>* rows)
    {
        ub_ = ub;
        headDim_ = headDim;
        rows_ = rows;
        for (uint32_t slot = 0; slot < ub->Layout().slots; slot++) {
            SetFlag<HardEvent::V_MTE2>(slot);
        }
    }

    TOPTHETA_DEVICE inline void Drain()
    {
        for (uint32_t slot = 0; slot < ub_->Layout().slots; slot++) {
            WaitFlag<HardEvent::V_MTE2>(slot);
        }
    }

    // Starts on rows [begin, end) of the sequence.
    TOPTHETA_DEVICE inline void Begin(uint32_t begin, uint32_t end)
    {
        begin_ = begin;
        end_ = end;
        tiles_ = CeilDiv(end - begin, ub_->Layout().tileRows);
        issued_ = 0;
        taken_ = 0;
        for (uint32_t slot = 0; slot < ub_->Layout().slots; slot++) {
            Issue();
        }
    }

    // Copies the next tile, if there is one, as soon as its slot is free.
    TOPTHETA_DEVICE inline void Issue()
    {
        if (issued_ == tiles_) {
            return;
        }
        const uint32_t slot = issued_ % ub_->Layout().slots;
        WaitFlag<HardEvent::V_MTE2>(slot);
        rows_->LoadTile(Slot(slot, 1), FirstRow(issued_), RowsOf(issued_, 1));
        SetFlag<HardEvent::MTE2_V>(slot);
        issued_++;
    }

    // Waits for the next `count` tiles, which lie in neighbouring slots.
    TOPTHETA_DEVICE inline LocalTensor<T> Take(uint32_t count)
    {
        const uint32_t slot = taken_ % ub_->Layout().slots;
        for (uint32_t i = 0; i < count; i++) {
            WaitFlag<HardEvent::MTE2_V>(slot + i);
        }
        return Slot(slot, count);
    }

    // Gives the tiles of the last Take back and copies new ones into their slots.
    TOPTHETA_DEVICE inline void Release(uint32_t count)
    {
        const uint32_t slot = taken_ % ub_->Layout().slots;
        taken_ += count;
        for (uint32_t i = 0; i < count; i++) {
            SetFlag<HardEvent::V_MTE2>(slot + i);
            Issue();
        }
    }

    // Two tiles at a time halve the instructions; the last ones come singly, to begin earlier.
    TOPTHETA_DEVICE inline uint32_t StepTiles(uint32_t tilesLeftInChunk) const
    {
        const bool pair = ub_->Layout().slots == 4 && taken_ % 2 == 0 && tilesLeftInChunk >= 2 &&
                          2 * ub_->Layout().tileRows <= kStepRows && tiles_ - taken_ > 2;
        return pair ? 2 : 1;
    }

    TOPTHETA_DEVICE inline uint32_t FirstRow(uint32_t tile) const { return begin_ + tile * ub_->Layout().tileRows; }
    TOPTHETA_DEVICE inline uint32_t RowsOf(uint32_t tile, uint32_t count) const
    {
        return Least(count * ub_->Layout().tileRows, end_ - FirstRow(tile));
    }
    TOPTHETA_DEVICE inline uint32_t Issued() const { return issued_; }
    TOPTHETA_DEVICE inline uint32_t Taken() const { return taken_; }
    TOPTHETA_DEVICE inline uint32_t TilesLeft() const { return tiles_ - taken_; }

private:
    TOPTHETA_DEVICE inline LocalTensor<T> Slot(uint32_t slot, uint32_t count)
    {
        const uint32_t elements = ub_->Layout().tileRows * headDim_;
        return ub_->At<T>(ub_->Layout().keyTiles + slot * elements * sizeof(T), count * elements);
    }

    UbMap* ub_ = nullptr;
    CacheRows<T>* rows_ = nullptr;
    uint32_t headDim_ = 0;
    uint32_t begin_ = 0;
    uint32_t end_ = 0;
    uint32_t tiles_ = 0;
    uint32_t issued_ = 0;
    uint32_t taken_ = 0;
};

}  // namespace toptheta
