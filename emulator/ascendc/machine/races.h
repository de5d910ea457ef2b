// Accesses of two cores to the same bytes that nothing orders.
#pragma once

#include <vector>

#include "between_cores.h"

namespace ascendc_host {

// mixed: blocks of several cores, which flags order too
void CheckRaces(const std::vector<CoreLog>& cores, bool mixed, const GmMemory& memory, FindingLog& findings);

}  // namespace ascendc_host
