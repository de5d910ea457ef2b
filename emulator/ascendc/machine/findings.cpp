#include "findings.h"

#include <algorithm>
#include <array>

#include "finding_log.h"

namespace ascendc_host {

namespace {

constexpr std::array<const char*, static_cast<size_t>(Check::kCount)> kNames = {
    "LocalCapacity", "LocalBounds",    "Uninitialised",   "Alignment",       "GmBounds",      "GmUninitialised",
    "GmReadOnly",    "ReadAfterWrite", "WriteAfterWrite", "WriteAfterRead",  "StaleRegister", "EventId",
    "FlagSetTwice",  "WaitWithoutSet", "FlagNeverWaited", "CrossCore",       "SyncAllCount",  "SyncAllKernelType",
    "SyncAllBlocks", "StaleCache",     "UnflushedWrite",  "SharedCacheLine", "UseAfterFree",  "Queue",
    "Leak",          "Parameter",      "Overlap",         "Unsupported",     "Exception",
};
static_assert(kNames.back() != nullptr, "every Check needs a name");

bool SamePlace(const Finding& a, const Finding& b)
{
    return a.check == b.check && a.line == b.line && a.file == b.file;
}

}  // namespace

const char* CheckName(Check check) { return kNames.at(static_cast<size_t>(check)); }

void FindingLog::Add(Finding finding)
{
    // the last one first: a faulty loop reports the same place again and again
    auto known = std::find_if(list_.rbegin(), list_.rend(), [&](const Finding& f) { return SamePlace(f, finding); });
    if (known == list_.rend()) {
        list_.push_back(std::move(finding));
        return;
    }
    known->count += finding.count;
}

bool FindingLog::CountAgain(Check check, Where where)
{
    for (auto known = list_.rbegin(); known != list_.rend(); ++known) {
        if (known->check == check && known->line == where.line && known->file == where.file) {
            ++known->count;
            return true;
        }
    }
    return false;
}

}  // namespace ascendc_host
