// The timeline as a Chrome trace: one process per core, one thread per pipe. Perfetto opens it.
#pragma once

#include <string>

#include "timeline.h"

namespace ascendc_host {

// Throws std::invalid_argument as Simulate does, std::runtime_error when the file cannot be written.
void WriteChromeTrace(const RunResult& run, const TimelineOptions& options, const std::string& path);

}  // namespace ascendc_host
