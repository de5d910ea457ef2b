#include "access_log.h"

#include <algorithm>

namespace ascendc_host {

void AccessLog::Add(const GmAccess& access)
{
    if (!accesses.empty()) {
        GmAccess& last = accesses.back();
        const bool same = last.buffer == access.buffer && last.epoch == access.epoch && last.write == access.write &&
                          last.where.line == access.where.line && last.where.file == access.where.file;
        const bool together = !exact_ || (last.slot == access.slot && last.seq == access.seq);
        if (same && together && access.begin <= last.end && access.end >= last.begin) {
            last.begin = std::min(last.begin, access.begin);
            last.end = std::max(last.end, access.end);
            return;
        }
    }
    accesses.push_back(access);
}

}  // namespace ascendc_host
