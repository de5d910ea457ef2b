// The order of one core's own accesses to global memory, byte by byte: which pipe wrote or read what, and when.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "clock.h"
#include "findings.h"
#include "interval_map.h"

namespace ascendc_host {

class GmOrder {
public:
    struct Conflict {
        Check check;
        uint64_t at;  // byte offset in the buffer
        int slot;     // the earlier instruction
        uint32_t seq;
    };
    struct Access {
        uint64_t begin;
        uint64_t end;
        int slot;
        uint32_t seq;
    };

    explicit GmOrder(int buffers) : buffers_(buffers) {}

    // Earlier accesses that are not ordered before this one, one per check. `finished` is what the instruction is
    // ordered after.
    std::vector<Conflict> Read(int buffer, const Access& access, const Clock& finished);
    std::vector<Conflict> Write(int buffer, const Access& access, const Clock& finished);

    // visit(begin, end) for bytes whose newest write may still be under way
    template <typename Visit>
    void ForEachUnfinishedWrite(int buffer, uint64_t begin, uint64_t end, const Clock& finished, Visit visit) const
    {
        buffers_[buffer].writes.ForEach(begin, end, [&](uint64_t from, uint64_t to, const Writer& writer) {
            if (writer.seq > finished[writer.slot]) visit(from, to);
        });
    }

    void Settle();  // every access so far has finished: forget them

private:
    struct Writer {
        int slot;
        uint32_t seq;
    };
    struct Buffer {
        IntervalMap<Writer> writes;
        std::array<IntervalMap<uint32_t>, kSlots> reads;
    };

    static void FindUnorderedWrite(const Buffer& buffer, Check check, const Access& access, const Clock& finished,
                                   std::vector<Conflict>& conflicts);

    std::vector<Buffer> buffers_;
};

}  // namespace ascendc_host
