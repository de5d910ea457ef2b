// The findings of one core or of a whole run, one entry per check and source line.
#pragma once

#include <vector>

#include "findings.h"
#include "types.h"

namespace ascendc_host {

class FindingLog {
public:
    void Add(Finding finding);  // the first one of its check and line is kept, the others are counted
    bool CountAgain(Check check, Where where);  // counts a repeated finding without composing its text
    const std::vector<Finding>& List() const { return list_; }

private:
    std::vector<Finding> list_;
};

}  // namespace ascendc_host
