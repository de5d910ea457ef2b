// When everything happened: a discrete-event simulation of the recorded instructions. Modelled, uncalibrated.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "cost.h"
#include "launch.h"

namespace ascendc_host {

struct TimelineOptions {
    bool hot = false;            // true: all data in the L2
    bool bankConflicts = false;  // true: the pessimistic time
    Cost cost;
};

// One instruction in the time of a pipe, in cycles. `done` is when its result is there.
struct Span {
    int64_t trace;  // of RunResult::traces
    int64_t core;   // of the device
    double begin;
    double end;
    double done;
    const Record* record;
};

// One core of a block.
struct CoreTimes {
    CoreSeat seat = {};  // in the launch
    int64_t core = 0;    // of the device
    double begin = 0;
    double end = 0;
    std::array<double, kSlots> busy = {};
};

struct Timeline {
    double cycles = 0;  // from the start of the first block to the end of the last
    double launchMicroseconds = 0;  // what the launch takes besides
    std::vector<CoreTimes> cores;
};

// Throws std::invalid_argument when the run has no complete record (trace off, or a kernel that did not finish) or a
// constant makes no sense.
Timeline Simulate(const RunResult& run, const TimelineOptions& options,
                  const std::function<void(const Span&)>& onSpan = nullptr);

}  // namespace ascendc_host
