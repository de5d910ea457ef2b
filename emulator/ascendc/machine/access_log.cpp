#include "access_log.h"

#include <algorithm>

namespace ascendc_host {

void AccessLog::Read(int buffer, uint64_t begin, uint64_t end, const char* call, Where where) {
    Append({buffer, epoch_, false, begin, end, call, where});
}

void AccessLog::Write(int buffer, uint64_t begin, uint64_t end, const char* call, Where where) {
    Append({buffer, epoch_, true, begin, end, call, where});
}

void AccessLog::Append(const GmAccess& access) {
    if (!accesses.empty()) {
        GmAccess& last = accesses.back();
        const bool same = last.buffer == access.buffer && last.epoch == access.epoch && last.write == access.write &&
                          last.where.line == access.where.line && last.where.file == access.where.file;
        if (same && access.begin <= last.end && access.end >= last.begin) {
            last.begin = std::min(last.begin, access.begin);
            last.end = std::max(last.end, access.end);
            return;
        }
    }
    accesses.push_back(access);
}

}  // namespace ascendc_host
