// The checks that need the logs of all cores, made once the run has ended.
#include <algorithm>
#include <map>

#include "access_log.h"
#include "data_cache.h"
#include "text.h"

namespace ascendc_host {

namespace {

struct CoreAccess {
    GmAccess access;
    int64_t block;
};

std::string Range(const GmMemory& memory, int buffer, uint64_t begin, uint64_t end) {
    return memory[buffer].name + " + " + std::to_string(begin) + ".." + std::to_string(end - 1);
}

// The two accesses that reach furthest, of two different blocks: enough to find a partner for any later access.
class Furthest {
public:
    void Add(const CoreAccess& candidate) {
        if (first_ == nullptr || candidate.access.end > first_->access.end) {
            if (first_ != nullptr && first_->block != candidate.block) second_ = first_;
            first_ = &candidate;
        } else if (candidate.block != first_->block &&
                   (second_ == nullptr || candidate.access.end > second_->access.end)) {
            second_ = &candidate;
        }
    }

    const CoreAccess* OverlapOfAnotherBlock(const CoreAccess& with) const {
        for (const CoreAccess* other : {first_, second_}) {
            if (other != nullptr && other->block != with.block && other->access.end > with.access.begin) return other;
        }
        return nullptr;
    }

private:
    const CoreAccess* first_ = nullptr;
    const CoreAccess* second_ = nullptr;
};

Finding RaceFinding(const CoreAccess& a, const CoreAccess& b, const GmMemory& memory) {
    const CoreAccess& writer = a.access.write ? a : b;
    const CoreAccess& other = a.access.write ? b : a;
    const uint64_t begin = std::max(a.access.begin, b.access.begin);
    const uint64_t end = std::min(a.access.end, b.access.end);
    Finding finding;
    finding.check = Check::kCrossCore;
    finding.file = other.access.where.file;
    finding.line = other.access.where.line;
    finding.call = other.access.call;
    finding.block = other.block;
    finding.what = "block " + std::to_string(other.block) + (other.access.write ? " writes " : " reads ") +
                   Range(memory, a.access.buffer, begin, end) + ", which " + writer.access.call + " at " +
                   Place(writer.access.where) + " writes in block " + std::to_string(writer.block) +
                   " between the same two SyncAll";
    finding.remedy = "give each core its own bytes, or call SyncAll between the two accesses";
    return finding;
}

void SweepOneEpoch(const std::vector<CoreAccess>& sorted, const GmMemory& memory, FindingLog& findings) {
    Furthest writes;
    Furthest reads;
    for (const CoreAccess& current : sorted) {
        const CoreAccess* partner = writes.OverlapOfAnotherBlock(current);
        if (partner == nullptr && current.access.write) partner = reads.OverlapOfAnotherBlock(current);
        if (partner != nullptr) findings.Add(RaceFinding(*partner, current, memory));
        (current.access.write ? writes : reads).Add(current);
    }
}

using Logs = std::vector<const AccessLog*>;

void CheckRaces(const Logs& logs, const GmMemory& memory, FindingLog& findings) {
    std::map<std::pair<int, uint32_t>, std::vector<CoreAccess>> groups;
    for (size_t block = 0; block < logs.size(); ++block) {
        for (const GmAccess& access : logs[block]->accesses) {
            groups[{access.buffer, access.epoch}].push_back({access, static_cast<int64_t>(block)});
        }
    }
    for (auto& [key, group] : groups) {
        std::stable_sort(group.begin(), group.end(), [](const CoreAccess& a, const CoreAccess& b) {
            return a.access.begin < b.access.begin;
        });
        SweepOneEpoch(group, memory, findings);
    }
}

Finding CacheFinding(Check check, const CachedLine& line, size_t block, const char* call, std::string what) {
    Finding finding;
    finding.check = check;
    finding.file = line.where.file;
    finding.line = line.where.line;
    finding.call = call;
    finding.block = static_cast<int64_t>(block);
    finding.what = std::move(what);
    finding.remedy = "clean and invalidate the line (DataCacheCleanAndInvalid), or move the data by DMA";
    return finding;
}

// A line cached in one epoch and read again in a later one, while another core wrote it in between.
void CheckStaleLine(const CachedLine& line, size_t block, const Logs& logs, const GmMemory& memory,
                    FindingLog& findings) {
    if (line.readBytes == 0) return;
    const uint64_t begin = line.line * kCacheLineBytes;
    for (size_t other = 0; other < logs.size(); ++other) {
        if (other == block) continue;
        for (const GmAccess& access : logs[other]->accesses) {
            const bool between = access.epoch >= line.filledIn && access.epoch < line.lastRead;
            if (!access.write || access.buffer != line.buffer || !between) continue;
            if ((LineMask(begin, access.begin, access.end) & line.readBytes) == 0) continue;
            findings.Add(CacheFinding(Check::kStaleCache, line, block, "GetValue",
                                      "the scalar unit reads " +
                                          Range(memory, line.buffer, begin, begin + kCacheLineBytes) +
                                          " from its data cache, but block " + std::to_string(other) + " wrote it (" +
                                          Place(access.where) + ") after the line was cached"));
            return;
        }
    }
}

// Where another core holds the line in its own cache, or writes into it by DMA, while this core's copy is live.
const Where* OtherUse(const CachedLine& line, const AccessLog& other) {
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
void CheckSharedLine(const CachedLine& line, size_t block, const Logs& logs, const GmMemory& memory,
                     FindingLog& findings) {
    if (!line.dirty) return;
    const uint64_t begin = line.line * kCacheLineBytes;
    for (size_t other = 0; other < logs.size(); ++other) {
        const Where* use = other == block ? nullptr : OtherUse(line, *logs[other]);
        if (use == nullptr) continue;
        findings.Add(CacheFinding(Check::kSharedCacheLine, line, block, "SetValue",
                                  "block " + std::to_string(block) + " writes back the whole cache line " +
                                      Range(memory, line.buffer, begin, begin + kCacheLineBytes) + ", which block " +
                                      std::to_string(other) + " uses too (" + Place(*use) + ")"));
        return;
    }
}

// Another core reads what is still only in this core's cache.
void CheckLateWrite(const CachedWrite& write, size_t block, const Logs& logs, const GmMemory& memory,
                    FindingLog& findings) {
    for (size_t other = 0; other < logs.size(); ++other) {
        if (other == block) continue;
        for (const GmAccess& access : logs[other]->accesses) {
            const bool meanwhile = access.epoch > write.writtenIn && access.epoch <= write.cleanedIn;
            const bool overlap = access.begin < write.end && access.end > write.begin;
            if (access.write || access.buffer != write.buffer || !meanwhile || !overlap) continue;
            Finding finding;
            finding.check = Check::kUnflushedWrite;
            finding.file = write.where.file;
            finding.line = write.where.line;
            finding.call = "SetValue";
            finding.block = static_cast<int64_t>(block);
            finding.what = "block " + std::to_string(other) + " reads " +
                           Range(memory, write.buffer, write.begin, write.end) + " at " + Place(access.where) +
                           " while the value is only in the data cache of block " + std::to_string(block);
            finding.remedy = "call DataCacheCleanAndInvalid on the line before SyncAll";
            findings.Add(finding);
            return;
        }
    }
}

}  // namespace

void CheckBetweenCores(const Logs& logs, const GmMemory& memory, FindingLog& findings) {
    CheckRaces(logs, memory, findings);
    for (size_t block = 0; block < logs.size(); ++block) {
        for (const CachedLine& line : logs[block]->cachedLines) {
            CheckStaleLine(line, block, logs, memory, findings);
            CheckSharedLine(line, block, logs, memory, findings);
        }
        for (const CachedWrite& write : logs[block]->cachedWrites) CheckLateWrite(write, block, logs, memory, findings);
    }
}

}  // namespace ascendc_host
