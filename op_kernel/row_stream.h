// The ring of tiles: K rows to multiply, and V rows of long lists to add, in the order in which they are needed.
//
// Copies run ahead of the computation by as many tiles as the ring has slots. While V tiles of a chunk's list are
// wanted they take turns with the K tiles of the next chunk, so that neither waits for the other.
#pragma once

#include "value_fetch.h"

namespace toptheta {

// K, V: the dtypes of the rows.
template <typename K, typename V>
class RowStream {
public:
    TOPTHETA_DEVICE inline void Init(UbMap* ub, uint32_t headDim, CacheRows<K>* keys, CacheRows<V>* values)
    {
        ub_ = ub;
        headDim_ = headDim;
        keys_ = keys;
        values_ = values;
        for (uint32_t slot = 0; slot < Slots(); slot++) {
            SetFlag<HardEvent::V_MTE2>(slot);
        }
    }

    TOPTHETA_DEVICE inline void Drain()
    {
        for (uint32_t slot = 0; slot < Slots(); slot++) {
            WaitFlag<HardEvent::V_MTE2>(slot);
        }
    }

    // Starts on the K rows [begin, end) of the sequence; none if they are equal.
    TOPTHETA_DEVICE inline void Begin(uint32_t begin, uint32_t end)
    {
        begin_ = begin;
        end_ = end;
        keyTiles_ = CeilDiv(end - begin, TileRows());
        // of int8 the vector unit sets the pace, which an instruction more costs too much
        halved_ = !IsInt8<K>::kValue && keyTiles_ > 0 && end - begin - (keyTiles_ - 1) * TileRows() > kLanes;
        keyTiles_ += halved_ ? 1 : 0;
        keysIssued_ = 0;
        keysTaken_ = 0;
        sample_ = KeySample();
        BeginValues(RowList());
    }

    // Starts on the keys of a sample.
    TOPTHETA_DEVICE inline void BeginSample(const KeySample& sample)
    {
        Begin(0, sample.Keys());
        sample_ = sample;
    }

    // Scales of tokens come with the K rows: those of K, and those of V unless the rows are selected later.
    TOPTHETA_DEVICE inline void SetScales(RowScales* keyScales, RowScales* valueScales)
    {
        keyScales_ = keyScales;
        valueScales_ = valueScales;
    }

    // Begins with the scales of a segment, behind Begin.
    TOPTHETA_DEVICE inline void BeginScales()
    {
        const uint32_t ring = ScaleRows(ub_->Layout());
        scalesAt_ = (scalesAt_ + scaledRows_) % ring;
        scaledRows_ = AlignUp(end_ - begin_, TileRows());
    }

    // Where the scales of a row lie in their rings.
    TOPTHETA_DEVICE inline uint32_t ScaleAt(uint32_t row) const
    {
        return (scalesAt_ + row - begin_) % ScaleRows(ub_->Layout());
    }

    // K tiles of this chunk and of the next; those beyond must wait, since V tiles of this chunk go before them.
    TOPTHETA_DEVICE inline void SetChunks(uint32_t tiles, uint32_t nextTiles)
    {
        chunkEnd_ = keysTaken_ + tiles;
        nextEnd_ = chunkEnd_ + nextTiles;
    }

    // V rows of a list: they go between the K tiles of the next chunk.
    TOPTHETA_DEVICE inline void BeginValues(const RowList& list)
    {
        QueueValues(list);
        NextList();
    }

    // The V rows of another list are asked for while those of List() are added. All of List() has been asked for.
    TOPTHETA_DEVICE inline void QueueValues(const RowList& list)
    {
        coming_ = list;
        tileBegin_ = 0;
        listIssued_ = 0;
    }

    // That list becomes List().
    TOPTHETA_DEVICE inline void NextList()
    {
        list_ = coming_;
        listTaken_ = 0;
    }

    // Asks for as many tiles as the ring has free slots.
    TOPTHETA_DEVICE inline void Fill()
    {
        while (issued_ < taken_ + Slots()) {
            const bool keysLeft = keysIssued_ < Least(keyTiles_, nextEnd_);
            const bool valuesLeft = listIssued_ < coming_.count;
            if (valuesLeft && (valuesTurn_ || !keysLeft || keysIssued_ >= chunkEnd_)) {
                IssueValues(coming_.tileRows);
            } else if (keysLeft) {
                IssueKeys();
            } else {
                return;
            }
        }
    }

    // Asks for some rows of the list that is coming: more would fill the queue of the copies, and the scalar unit with
    // its instructions for others would wait.
    TOPTHETA_DEVICE inline void AskForSome()
    {
        if (!AllAskedFor() && issued_ < taken_ + Slots()) {
            IssueValues(kBatchRows);
        }
    }

    TOPTHETA_DEVICE inline bool NextIsValues() const { return taken_ < issued_ && isValues_[taken_ % Slots()]; }
    TOPTHETA_DEVICE inline bool AllAskedFor() const { return listIssued_ == coming_.count; }
    TOPTHETA_DEVICE inline bool ValuesLeft() const { return listTaken_ < list_.count; }
    TOPTHETA_DEVICE inline const RowList& List() const { return list_; }

    // V tiles of List() at the front of the ring; they can be worked on together.
    TOPTHETA_DEVICE inline uint32_t ValueTiles() const
    {
        const uint32_t left = CeilDiv(list_.count - listTaken_, list_.tileRows);
        uint32_t tiles = 0;
        while (tiles < left && taken_ + tiles < issued_ && isValues_[(taken_ + tiles) % Slots()]) {
            tiles++;
        }
        return tiles;
    }
    TOPTHETA_DEVICE inline void WaitForValues(uint32_t tile) { WaitFlag<HardEvent::MTE2_V>((taken_ + tile) % Slots()); }
    TOPTHETA_DEVICE inline LocalTensor<V> Values(uint32_t tile) { return Slot<V>((taken_ + tile) % Slots(), 1); }
    // The first entry of the list in one of them.
    TOPTHETA_DEVICE inline uint32_t FirstEntry(uint32_t tile) const
    {
        return Least(listTaken_ + tile * list_.tileRows, list_.count);
    }

    // Two K tiles at a time halve the instructions; the first and the last come singly, to begin earlier.
    TOPTHETA_DEVICE inline uint32_t StepTiles(uint32_t tilesLeftInChunk) const
    {
        const uint32_t slot = taken_ % Slots();
        const bool pair = Slots() == 4 && slot % 2 == 0 && keysTaken_ > 0 && tilesLeftInChunk >= 2 &&
                          2 * TileRows() <= kStepRows && (IsInt8<K>::kValue || keyTiles_ - keysTaken_ > 2) &&
                          issued_ > taken_ + 1 && !isValues_[slot + 1];
        return pair ? 2 : 1;
    }

    // Waits for the next `count` tiles, which lie in neighbouring slots.
    TOPTHETA_DEVICE inline LocalTensor<K> Take(uint32_t count)
    {
        const uint32_t slot = taken_ % Slots();
        for (uint32_t i = 0; i < count; i++) {
            WaitFlag<HardEvent::MTE2_V>(slot + i);
        }
        return Slot<K>(slot, count);
    }

    // Gives the tiles of the last Take back.
    TOPTHETA_DEVICE inline void Free(uint32_t count)
    {
        const uint32_t slot = taken_ % Slots();
        if (isValues_[slot]) {
            listTaken_ = FirstEntry(1);
        } else {
            keysTaken_ += count;
        }
        taken_ += count;
        for (uint32_t i = 0; i < count; i++) {
            SetFlag<HardEvent::V_MTE2>(slot + i);
        }
    }

    // The last K tile comes in two halves: the shorter it is, the less is left to do after the last row.
    TOPTHETA_DEVICE inline uint32_t FirstRow(uint32_t tile) const
    {
        if (halved_ && tile == keyTiles_ - 1) {
            const uint32_t before = begin_ + (tile - 1) * TileRows();
            return before + AlignUp((end_ - before) / 2, kBlockHalves);
        }
        return begin_ + tile * TileRows();
    }
    TOPTHETA_DEVICE inline uint32_t RowsOf(uint32_t tile, uint32_t count) const
    {
        const uint32_t last = tile + count;
        return (last < keyTiles_ ? FirstRow(last) : end_) - FirstRow(tile);
    }
    // K tiles that hold about the last 256 rows, and leave a slot of the ring free.
    TOPTHETA_DEVICE inline uint32_t TailTiles() const
    {
        uint32_t tiles = 1;
        while (tiles < Least(keyTiles_, Slots() - 1) && end_ - FirstRow(keyTiles_ - tiles) < kTailRows) {
            tiles++;
        }
        return tiles;
    }
    TOPTHETA_DEVICE inline uint32_t Issued() const { return issued_; }
    TOPTHETA_DEVICE inline uint32_t Taken() const { return taken_; }
    TOPTHETA_DEVICE inline uint32_t KeysTaken() const { return keysTaken_; }
    TOPTHETA_DEVICE inline uint32_t KeyTiles() const { return keyTiles_; }
    TOPTHETA_DEVICE inline uint32_t KeysLeft() const { return keyTiles_ - keysTaken_; }
    // The slot behind the next `tiles`, fewer than there are slots.
    TOPTHETA_DEVICE inline uint32_t SlotBehind(uint32_t tiles) const { return (taken_ + tiles) % Slots(); }
    TOPTHETA_DEVICE inline LocalTensor<V> SlotRows(uint32_t slot) { return Slot<V>(slot, 1); }

private:
    static constexpr uint32_t kMostSlots = 4;
    static constexpr uint32_t kBatchRows = 32;
    static constexpr uint32_t kTailRows = 256;

    TOPTHETA_DEVICE inline uint32_t Slots() const { return ub_->Layout().slots; }
    TOPTHETA_DEVICE inline uint32_t TileRows() const { return ub_->Layout().tileRows; }

    template <typename T>
    TOPTHETA_DEVICE inline LocalTensor<T> Slot(uint32_t slot, uint32_t count)
    {
        const uint32_t bytes = ub_->Layout().slotBytes;
        return ub_->template At<T>(ub_->Layout().keyTiles + slot * bytes, count * bytes / sizeof(T));
    }

    TOPTHETA_DEVICE inline void IssueKeys()
    {
        const uint32_t slot = issued_ % Slots();
        WaitFlag<HardEvent::V_MTE2>(slot);
        const uint32_t row = FirstRow(keysIssued_);
        const uint32_t rows = RowsOf(keysIssued_, 1);
        if (sample_.Keys() > 0) {
            // without scales: K has those of channels, and no V row is selected
            keys_->LoadSample(Slot<K>(slot, 1), sample_, row, rows);
        } else {
            keys_->LoadTile(Slot<K>(slot, 1), row, rows);
            if constexpr (IsInt8<K>::kValue) {
                LoadScales(row, rows);
            }
        }
        SetFlag<HardEvent::MTE2_V>(slot);
        keysIssued_++;
        Issue(slot, false);
    }

    TOPTHETA_DEVICE inline void LoadScales(uint32_t row, uint32_t rows)
    {
        if (keyScales_ != nullptr) {
            keys_->LoadScales(ub_->KeyScales()[ScaleAt(row)], *keyScales_, row, rows);
        }
        if (valueScales_ != nullptr) {
            keys_->LoadScales(ub_->ValueScales()[ScaleAt(row)], *valueScales_, row, rows);
        }
    }

    // At most `most` rows, an even number, of the V tile that is next.
    TOPTHETA_DEVICE inline void IssueValues(uint32_t most)
    {
        const uint32_t slot = issued_ % Slots();
        const uint32_t tileEnd = Least(tileBegin_ + coming_.tileRows, coming_.count);
        const uint32_t end = Least(listIssued_ + most, tileEnd);
        const LocalTensor<V> to = Slot<V>(slot, 1)[(listIssued_ - tileBegin_) * headDim_];
        if (listIssued_ == tileBegin_) {
            WaitFlag<HardEvent::V_MTE2>(slot);
        }
        if (coming_.dense) {
            values_->LoadTile(to, coming_.chunkBegin + listIssued_, end - listIssued_);
        } else {
            FetchListed(*ub_, *values_, to, headDim_, coming_, listIssued_, end);
        }
        listIssued_ = end;
        if (end == tileEnd) {
            SetFlag<HardEvent::MTE2_V>(slot);
            tileBegin_ = end;
            Issue(slot, true);
        }
    }

    TOPTHETA_DEVICE inline void Issue(uint32_t slot, bool values)
    {
        isValues_[slot] = values;
        valuesTurn_ = !values;
        issued_++;
    }

    UbMap* ub_ = nullptr;
    CacheRows<K>* keys_ = nullptr;
    CacheRows<V>* values_ = nullptr;
    KeySample sample_;  // whose keys are streamed, none otherwise
    RowList list_;    // whose tiles are added
    RowList coming_;  // whose tiles are asked for: the same, or the next
    RowScales* keyScales_ = nullptr;
    RowScales* valueScales_ = nullptr;
    uint32_t scalesAt_ = 0;    // place of the scales of the segment in their ring
    uint32_t scaledRows_ = 0;  // that they take there
    uint32_t headDim_ = 0;
    uint32_t begin_ = 0;
    uint32_t end_ = 0;
    uint32_t keyTiles_ = 0;
    uint32_t keysIssued_ = 0;
    uint32_t keysTaken_ = 0;
    uint32_t chunkEnd_ = 0;
    uint32_t nextEnd_ = 0;
    uint32_t tileBegin_ = 0;   // of the tile that is next, in that list
    uint32_t listIssued_ = 0;  // entries of the list that is coming
    uint32_t listTaken_ = 0;
    uint32_t issued_ = 0;      // tiles of both kinds
    uint32_t taken_ = 0;
    bool isValues_[kMostSlots] = {};
    bool valuesTurn_ = false;
    bool halved_ = false;
};

}  // namespace toptheta
