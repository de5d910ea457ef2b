// What goes wrong between cores, found once all of them have ended.
#pragma once

#include <string>
#include <vector>

#include "access_log.h"
#include "core_layout.h"
#include "cross_core_flags.h"
#include "finding_log.h"
#include "gm_memory.h"

namespace ascendc_host {

struct CoreLog {
    const AccessLog* log;
    const std::vector<BlockKnowledge>* knowledge;
    CoreSeat seat;
    std::string name;
};

// Reports races between cores and stale or shared cache lines.
void CheckBetweenCores(const std::vector<CoreLog>& cores, bool mixed, const GmMemory& memory, FindingLog& findings);

}  // namespace ascendc_host
