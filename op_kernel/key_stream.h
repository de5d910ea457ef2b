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
        halved_ = end - begin - (tiles_ - 1) * ub_->Layout().tileRows > kLanes;
        tiles_ += halved_ ? 1 : 0;
        issued_ = 0;
        taken_ = 0;
        Fill();
    }

    // Asks for as many tiles as the ring has free slots.
    TOPTHETA_DEVICE inline void Fill()
    {
        while (issued_ < tiles_ && issued_ < taken_ + ub_->Layout().slots) {
            const uint32_t slot = issued_ % ub_->Layout().slots;
            WaitFlag<HardEvent::V_MTE2>(slot);
            rows_->LoadTile(Slot(slot, 1), FirstRow(issued_), RowsOf(issued_, 1));
            SetFlag<HardEvent::MTE2_V>(slot);
            issued_++;
        }
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

    // Gives the tiles of the last Take back.
    TOPTHETA_DEVICE inline void Free(uint32_t count)
    {
        const uint32_t slot = taken_ % ub_->Layout().slots;
        taken_ += count;
        for (uint32_t i = 0; i < count; i++) {
            SetFlag<HardEvent::V_MTE2>(slot + i);
        }
    }

    // Two tiles at a time halve the instructions; the first and the last come singly, to begin earlier.
    TOPTHETA_DEVICE inline uint32_t StepTiles(uint32_t tilesLeftInChunk) const
    {
        const bool pair = ub_->Layout().slots == 4 && taken_ % 2 == 0 && taken_ > 0 && tilesLeftInChunk >= 2 &&
                          2 * ub_->Layout().tileRows <= kStepRows && tiles_ - taken_ > 2;
        return pair ? 2 : 1;
    }

    // The last tile comes in two halves: the shorter it is, the less is left to do after the last row.
    TOPTHETA_DEVICE inline uint32_t FirstRow(uint32_t tile) const
    {
        if (halved_ && tile == tiles_ - 1) {
            const uint32_t before = begin_ + (tile - 1) * ub_->Layout().tileRows;
            return before + AlignUp((end_ - before) / 2, kBlockHalves);
        }
        return begin_ + tile * ub_->Layout().tileRows;
    }
    TOPTHETA_DEVICE inline uint32_t RowsOf(uint32_t tile, uint32_t count) const
    {
        const uint32_t last = tile + count;
        return (last < tiles_ ? FirstRow(last) : end_) - FirstRow(tile);
    }
    TOPTHETA_DEVICE inline uint32_t RowsLeft() const { return taken_ < tiles_ ? end_ - FirstRow(taken_) : 0; }
    TOPTHETA_DEVICE inline uint32_t Issued() const { return issued_; }
    TOPTHETA_DEVICE inline uint32_t Taken() const { return taken_; }
    // Tiles that hold about the last 256 rows.
    TOPTHETA_DEVICE inline uint32_t TailTiles() const
    {
        uint32_t tiles = 1;
        while (tiles < tiles_ && end_ - FirstRow(tiles_ - tiles) < 2 * kGranuleRows) {
            tiles++;
        }
        return tiles;
    }
    TOPTHETA_DEVICE inline LocalTensor<T> FirstSlot() { return Slot(0, 1); }
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
    bool halved_ = false;
};

}  // namespace toptheta
