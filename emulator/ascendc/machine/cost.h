// The constants of the timeline. They are modelled, uncalibrated: taken from documentation, not from a measurement of
// ours. There are three sets, which differ where the documents leave room: what we expect, and the kind and the unkind
// reading of the same documents.
#pragma once

#include <optional>
#include <string_view>

namespace ascendc_host {

// Cycles of one clock unless a name says otherwise. "docs" is asc-devkit's docs/zh or one of its examples, "ini" is
// Ascend910B1.ini of CANN 8.1. The values here are the expected ones.
struct Cost {
    double gigahertz = 1.85;       // ini
    double vectorHead = 22;        // derived: docs, bank-conflict example, 64 repeats of Add take 47.8 ns
    double gatherMaskRepeat = 2;  // docs, instruction parallelism: 32 lanes of 32 bits a cycle
    double vectorRepeat = 1;  // times what docs, instruction parallelism, say of the other vector instructions
    double cubeHead = 60;  // docs, UnitFlag example, for M: 4156 cycles for products of 4096; assumed for MTE1
    double scalarIssue = 4;  // assumed
    double scalarUb = 10;  // derived: docs, add_high_performance example, 34 cycles for a loop of 3 accesses
    double scalarGmHit = 10;  // assumed: as for the UB
    double scalarGmMiss = 300;  // assumed: a DMA latency less the set-up of a command
    double dmaCommand = 20;  // derived: docs, data_copy example, 128 bytes per command on 48 cores take 548 us
    double readLatencyCold = 900;  // assumed
    double readLatencyHot = 400;  // assumed
    double writeLatency = 400;  // assumed: writes end in the L2 in both modes
    double rateCold = 16.8;  // bytes per cycle and pipe; docs, data_copy example: 1.49 TB/s over 48 cores
    double rateHot = 58.5;  // same example with data in the L2: 5.2 TB/s
    double cubeRateCold = 32;  // of a pipe of a cube core; ini, ddr_rate
    double cubeRateHot = 110;  // ini, l2_read_rate; docs, data_copy example, to L1 from the L2: 906 MB in 180 us, 113
    double cubeWriteRateHot = 86;  // ini, l2_write_rate
    double sharedCold = 48 * 16.8;  // bytes per cycle of all cores together
    double sharedHot = 48 * 58.5;
    double queueDepth = 32;  // entries of a pipe's queue; docs, NPU architecture 2201
    double syncAllMicroseconds = 1.5;  // unsourced: a parameter to vary
    double crossCoreFlag = 200;  // from a set to the end of the wait; unsourced: a parameter to vary
    // A launch beyond what the timeline has: task duration less the time of the copies in docs, data_copy and
    // add_high_performance examples, kernels that do little else on all cores; eight of 11.7 to 21.5 us on vector
    // cores, median 13.3, four of 11.5 to 17.2 on cube cores, median 16, without those that provoke conflicts; the
    // timeline has 1 of them itself.
    double launchMicroseconds = 12;
    double launchMixedMicroseconds = 15;  // with cube cores
    // 1: what a launch writes to its workspace and reads back stays in the L2, if all that the launch brings there
    // fits l2Bytes. Docs: copies go through the L2 by default (architecture pages), a line is written back when it is
    // replaced (page on L2 cache modes), and 75 MB read four times hit three times (data_copy example). 0: in HBM.
    double workspaceInL2 = 1;
    double l2Bytes = 192.0 * 1024 * 1024;  // ini, l2_size; docs, page on cache coherence
    // What a row costs out of HBM beyond its own bytes, in bytes, if it is shorter than a line of the L2 and no
    // neighbour comes with it; at most the rest of the line. Derived: docs, data_copy example, past the L2: rows of
    // 128 bytes take 11.6 cycles, that is 195 bytes of rateCold. So less than a line is fetched there.
    double scatteredRowBytes = 66;
    // For each core that has read the same line of the L2 before this one does. Docs (page on same addresses): such
    // reads are served one by one. Derived: data_copy example, 48 cores that read the same 128 rows take 803 cycles
    // longer than in different orders: 17 each if the rows queue side by side, 0.13 if one behind the other. This is
    // their geometric mean.
    double sameAddressRead = 1.5;
};

// What the documents allow at best.
inline Cost OptimisticCost()
{
    Cost cost;
    cost.readLatencyCold = 347;  // cycles of the vendor's own simulator (pypto 0.2.0), which knows no L2
    cost.readLatencyHot = 347;  // the same
    cost.writeLatency = 203;  // the same
    cost.syncAllMicroseconds = 1;  // assumed
    cost.crossCoreFlag = 100;  // assumed
    // task duration less the time inside the cores alone: the lower quartile of twelve profiles of vector cores, and of
    // six of cube cores, in the same examples
    cost.launchMicroseconds = 6;
    cost.launchMixedMicroseconds = 10;
    cost.scatteredRowBytes = 0;  // docs, data_copy example: the L2 counts reads by 128 bytes
    cost.sameAddressRead = 0;
    return cost;
}

// What they allow at worst.
inline Cost PessimisticCost()
{
    Cost cost;
    cost.syncAllMicroseconds = 2;  // assumed
    cost.crossCoreFlag = 400;  // assumed
    cost.launchMicroseconds = 21;  // docs, page on profiles: 20 to 21 us of an empty kernel on all cores of an A2
    cost.launchMixedMicroseconds = 21;
    cost.workspaceInL2 = 0;
    cost.scatteredRowBytes = 512;  // docs, page on cache coherence: the L2 moves lines of 512 bytes
    cost.sameAddressRead = 17;
    return cost;
}

inline std::optional<Cost> CostOf(std::string_view column)
{
    if (column == "optimistic") return OptimisticCost();
    if (column == "expected") return Cost();
    if (column == "pessimistic") return PessimisticCost();
    return std::nullopt;
}

}  // namespace ascendc_host
