// The data cache between one core's scalar unit and global memory: 64-byte lines, written back only on request.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "access_log.h"
#include "gm_order.h"

namespace ascendc_host {

constexpr uint64_t kCacheLineBytes = 64;

// bit i: byte lineBegin + i lies in [begin, end)
uint64_t LineMask(uint64_t lineBegin, uint64_t begin, uint64_t end);

// The model keeps every line until it is cleaned: an eviction cannot be relied on.
class DataCache {
public:
    struct Line {
        uint32_t filledIn;
        uint64_t dirty = 0;  // bit per byte
        uint64_t stale = 0;  // written by this core's own DMA after the fill
        uint64_t readLater = 0;
        uint32_t lastRead = 0;
        uint32_t dirtiedIn = 0;
        Where where;
    };

    struct Lookup {
        Line& line;
        bool hit;
    };

    Lookup Touch(int buffer, uint64_t line, uint32_t epoch);
    void Clear() { lines_.clear(); }

    // visit(offset of the line, Line&) for the cached lines that [begin, end) touches
    template <typename Visit>
    void ForEach(int buffer, uint64_t begin, uint64_t end, Visit visit)
    {
        for (uint64_t line = begin / kCacheLineBytes; line * kCacheLineBytes < end; ++line) {
            auto found = lines_.find(Key(buffer, line));
            if (found != lines_.end()) visit(line * kCacheLineBytes, found->second);
        }
    }

    // visit(buffer, offset of the line, Line&) for all of them, in order of buffer and offset
    template <typename Visit>
    void ForEachLine(Visit visit)
    {
        for (uint64_t key : SortedKeys()) {
            visit(static_cast<int>(key >> kLineBits), (key & kLineMask) * kCacheLineBytes, lines_.at(key));
        }
    }

    void RemoveClean(int buffer, uint64_t line);  // unless bytes of it are dirty

private:
    static constexpr int kLineBits = 48;
    static constexpr uint64_t kLineMask = (1ull << kLineBits) - 1;

    static uint64_t Key(int buffer, uint64_t line) { return static_cast<uint64_t>(buffer) << kLineBits | line; }
    std::vector<uint64_t> SortedKeys() const;

    std::unordered_map<uint64_t, Line> lines_;
};

}  // namespace ascendc_host
