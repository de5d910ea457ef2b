#include "between_cores.h"

#include "data_cache.h"
#include "races.h"
#include "text.h"

namespace ascendc_host {

namespace {

using Cores = std::vector<CoreLog>;

Finding CacheFinding(Check check, const CachedLine& line, const CoreLog& core, const char* call, std::string what)
{
    Finding finding;
    finding.check = check;
    finding.file = line.where.file;
    finding.line = line.where.line;
    finding.call = call;
    finding.block = core.seat.block;
    finding.what = std::move(what);
    finding.remedy = "clean and invalidate the line (DataCacheCleanAndInvalid), or move the data by DMA";
    return finding;
}

// A line cached in one epoch and read again in a later one, while another core wrote it in between.
void CheckStaleLine(const CachedLine& line, const CoreLog& core, const Cores& cores, const GmMemory& memory,
                    FindingLog& findings)
{
    if (line.readBytes == 0) return;
    const uint64_t begin = line.line * kCacheLineBytes;
    for (const CoreLog& other : cores) {
        if (&other == &core) continue;
        for (const GmAccess& access : other.log->accesses) {
            const bool between = access.epoch >= line.filledIn && access.epoch < line.lastRead;
            if (!access.write || access.buffer != line.buffer || !between) continue;
            if ((LineMask(begin, access.begin, access.end) & line.readBytes) == 0) continue;
            findings.Add(CacheFinding(Check::kStaleCache, line, core, "GetValue",
                                      "the scalar unit reads " +
                                          memory.Range(line.buffer, begin, begin + kCacheLineBytes) +
                                          " from its data cache, but " + other.name + " wrote it (" +
                                          Place(access.where) + ") after the line was cached"));
            return;
        }
    }
}

// Where another core holds the line in its own cache, or writes into it by DMA, while this core's copy is live.
const Where* OtherUse(const CachedLine& line, const AccessLog& other)
{
    for (const CachedLine& theirs : other.cachedLines) {
        const bool sameLine = theirs.buffer == line.buffer && theirs.line == line.line;
        if (sameLine && theirs.filledIn <= line.removedIn && theirs.removedIn >= line.filledIn) return &theirs.where;
    }
    const uint64_t begin = line.line * kCacheLineBytes;
    for (const GmAccess& access : other.accesses) {
        const bool meanwhile = access.epoch >= line.filledIn && access.epoch <= line.removedIn;
        if (!access.write || access.buffer != line.buffer || !meanwhile) continue;
        if (LineMask(begin, access.begin, access.end) != 0) return &access.where;
    }
    return nullptr;
}

// A dirty line goes back to memory as a whole, so nobody else may use it meanwhile.
void CheckSharedLine(const CachedLine& line, const CoreLog& core, const Cores& cores, const GmMemory& memory,
                     FindingLog& findings)
{
    if (!line.dirty) return;
    const uint64_t begin = line.line * kCacheLineBytes;
    for (const CoreLog& other : cores) {
        const Where* use = &other == &core ? nullptr : OtherUse(line, *other.log);
        if (use == nullptr) continue;
        findings.Add(CacheFinding(Check::kSharedCacheLine, line, core, "SetValue",
                                  core.name + " writes back the whole cache line " +
                                      memory.Range(line.buffer, begin, begin + kCacheLineBytes) + ", which " +
                                      other.name + " uses too (" + Place(*use) + ")"));
        return;
    }
}

// Another core reads what is still only in this core's cache.
void CheckLateWrite(const CachedWrite& write, const CoreLog& core, const Cores& cores, const GmMemory& memory,
                    FindingLog& findings)
{
    for (const CoreLog& other : cores) {
        if (&other == &core) continue;
        for (const GmAccess& access : other.log->accesses) {
            const bool meanwhile = access.epoch > write.writtenIn && access.epoch <= write.cleanedIn;
            const bool overlap = access.begin < write.end && access.end > write.begin;
            if (access.write || access.buffer != write.buffer || !meanwhile || !overlap) continue;
            Finding finding;
            finding.check = Check::kUnflushedWrite;
            finding.file = write.where.file;
            finding.line = write.where.line;
            finding.call = "SetValue";
            finding.block = core.seat.block;
            finding.what = other.name + " reads " + memory.Range(write.buffer, write.begin, write.end) + " at " +
                           Place(access.where) + " while the value is only in the data cache of " + core.name;
            finding.remedy = "call DataCacheCleanAndInvalid on the line before SyncAll";
            findings.Add(finding);
            return;
        }
    }
}

}  // namespace

void CheckBetweenCores(const Cores& cores, bool mixed, const GmMemory& memory, FindingLog& findings)
{
    CheckRaces(cores, mixed, memory, findings);
    for (const CoreLog& core : cores) {
        for (const CachedLine& line : core.log->cachedLines) {
            CheckStaleLine(line, core, cores, memory, findings);
            CheckSharedLine(line, core, cores, memory, findings);
        }
        for (const CachedWrite& write : core.log->cachedWrites) CheckLateWrite(write, core, cores, memory, findings);
    }
}

}  // namespace ascendc_host
