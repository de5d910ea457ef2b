// Where a transfer ends, in HBM or in the L2, and what it takes there beyond its own bytes.
#pragma once

#include <algorithm>

#include "timeline.h"

namespace ascendc_host {

class MemoryPath {
public:
    MemoryPath(const RunResult& run, const TimelineOptions& options)
        : hot_(options.hot),
          cost_(options.cost),
          workspaceStays_(options.cost.workspaceInL2 != 0 &&
                          static_cast<double>(run.bytesThroughL2) <= options.cost.l2Bytes)
    {}

    // What carries the hint to go past the L2 was not there before, so it comes from HBM in both modes.
    bool InL2(const Record& record) const { return hot_ ? !record.pastL2 : record.inWorkspace && workspaceStays_; }

    double Bytes(const Record& record) const
    {
        const auto own = static_cast<double>(record.gmBytes);
        if (InL2(record)) return own;
        return own + record.narrowRows * std::min<double>(cost_.scatteredRowBytes, record.restOfLine);
    }

    // of a pipe of a vector core
    double ReadCycles(const Record& record) const
    {
        return Bytes(record) / (InL2(record) ? cost_.rateHot : cost_.rateCold);
    }

    double ReadLatency(const Record& record) const
    {
        const double latency = InL2(record) ? cost_.readLatencyHot : cost_.readLatencyCold;
        return latency + record.readersBefore * cost_.sameAddressRead;
    }

    // Of a pipe, over that of a vector core.
    double Share(const Record& record, CoreKind kind, Pipe pipe) const
    {
        if (kind == CoreKind::kVector) return 1;
        if (!InL2(record)) return cost_.cubeRateCold / cost_.rateCold;
        return (pipe == Pipe::kMte2 ? cost_.cubeRateHot : cost_.cubeWriteRateHot) / cost_.rateHot;
    }

private:
    const bool hot_;
    const Cost& cost_;
    const bool workspaceStays_;
};

}  // namespace ascendc_host
