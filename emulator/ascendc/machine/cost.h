// The constants of the timeline. They are modelled, uncalibrated: taken from documentation, not from a measurement.
#pragma once

namespace ascendc_host {

// Cycles of one clock unless a name says otherwise. "docs" is asc-devkit's docs/zh.
struct Cost {
    double gigahertz = 1.85;       // Ascend910B1.ini of CANN 8.1
    double vectorHead = 22;        // derived: docs, bank-conflict example, 64 repeats of Add take 47.8 ns
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
    double cubeRateCold = 32;  // of a pipe of a cube core; Ascend910B1.ini of CANN 8.1, ddr_rate
    double cubeRateHot = 110;  // same file, l2_rate; docs, data_copy example, to L1 from the L2: 906 MB in 183 us, 111
    double sharedCold = 48 * 16.8;  // bytes per cycle of all cores together
    double sharedHot = 48 * 58.5;
    double queueDepth = 32;  // entries of a pipe's queue; docs, NPU architecture 2201
    double syncAllMicroseconds = 1.5;  // unsourced: a parameter to vary
    double crossCoreFlag = 200;  // from a set to the end of the wait; unsourced: a parameter to vary
};

}  // namespace ascendc_host
