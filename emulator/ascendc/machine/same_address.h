// Reads of the same line of the L2 by several cores, which the hardware serves one by one.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "record.h"

namespace ascendc_host {

inline bool ReadsGm(const Record& record, CoreKind kind)
{
    if (record.kind == RecordKind::kDma) return PipeAt(kind, record.slot) == Pipe::kMte2;
    return record.kind == RecordKind::kScalar &&
           (record.scalar == ScalarAccess::kGmMiss || record.scalar == ScalarAccess::kGmCopy ||
            record.scalar == ScalarAccess::kGmPreload);
}

// Cores queue in the order of their indices. That they come at the same time is taken for granted: what several cores
// read is the tiling data, lengths and tables, which each of them reads first.
inline void CountReadersBefore(std::vector<CoreTrace>& traces)
{
    struct Readers {
        uint16_t cores = 0;
        size_t last = ~size_t{0};  // trace
    };
    std::unordered_map<uint64_t, Readers> lines;
    for (size_t trace = 0; trace < traces.size(); ++trace) {
        for (Record& record : traces[trace].records) {
            if (!ReadsGm(record, traces[trace].seat.kind)) continue;
            Readers& readers = lines[static_cast<uint64_t>(record.gmBuffer) << 32 | record.gmLine];
            if (readers.last != trace) {
                readers.last = trace;
                ++readers.cores;
            }
            record.readersBefore = static_cast<uint16_t>(readers.cores - 1);
        }
    }
}

}  // namespace ascendc_host
