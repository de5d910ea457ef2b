#include "races.h"

#include <algorithm>
#include <map>

#include "text.h"

namespace ascendc_host {

namespace {

struct CoreAccess {
    GmAccess access;
    const CoreLog* core;
};

// The two accesses that reach furthest, of two different cores: enough to find a partner for any later access.
class Furthest {
public:
    void Add(const CoreAccess& candidate)
    {
        if (first_ == nullptr || candidate.access.end > first_->access.end) {
            if (first_ != nullptr && first_->core != candidate.core) second_ = first_;
            first_ = &candidate;
        } else if (candidate.core != first_->core &&
                   (second_ == nullptr || candidate.access.end > second_->access.end)) {
            second_ = &candidate;
        }
    }

    const CoreAccess* OverlapOfAnotherCore(const CoreAccess& with) const
    {
        for (const CoreAccess* other : {first_, second_}) {
            if (other != nullptr && other->core != with.core && other->access.end > with.access.begin) return other;
        }
        return nullptr;
    }

private:
    const CoreAccess* first_ = nullptr;
    const CoreAccess* second_ = nullptr;
};

Finding RaceFinding(const CoreAccess& a, const CoreAccess& b, bool mixed, const GmMemory& memory)
{
    const CoreAccess& writer = a.access.write ? a : b;
    const CoreAccess& other = a.access.write ? b : a;
    const uint64_t begin = std::max(a.access.begin, b.access.begin);
    const uint64_t end = std::min(a.access.end, b.access.end);
    Finding finding;
    finding.check = Check::kCrossCore;
    finding.file = other.access.where.file;
    finding.line = other.access.where.line;
    finding.call = other.access.call;
    finding.block = other.core->seat.block;
    finding.what = other.core->name + (other.access.write ? " writes " : " reads ") +
                   memory.Range(a.access.buffer, begin, end) + ", which " + writer.access.call + " at " +
                   Place(writer.access.where) + " writes in " + writer.core->name +
                   (mixed ? " with no flag or SyncAll between the two" : " between the same two SyncAll");
    finding.remedy = std::string("give each core its own bytes, or call SyncAll ") +
                     (mixed ? "or CrossCoreSetFlag and CrossCoreWaitFlag " : "") + "between the two accesses";
    return finding;
}

using Accesses = std::vector<CoreAccess>;

void SortByBegin(Accesses& accesses)
{
    std::stable_sort(accesses.begin(), accesses.end(),
                     [](const CoreAccess& a, const CoreAccess& b) { return a.access.begin < b.access.begin; });
}

// ---- vector cores: nothing but SyncAll orders them -----------------------------------------------------------------

void SweepOneEpoch(const Accesses& sorted, const GmMemory& memory, FindingLog& findings)
{
    Furthest writes;
    Furthest reads;
    for (const CoreAccess& current : sorted) {
        const CoreAccess* partner = writes.OverlapOfAnotherCore(current);
        if (partner == nullptr && current.access.write) partner = reads.OverlapOfAnotherCore(current);
        if (partner != nullptr) findings.Add(RaceFinding(*partner, current, false, memory));
        (current.access.write ? writes : reads).Add(current);
    }
}

void CheckEpochs(const std::vector<CoreLog>& cores, const GmMemory& memory, FindingLog& findings)
{
    std::map<std::pair<int, uint32_t>, Accesses> groups;
    for (const CoreLog& core : cores) {
        for (const GmAccess& access : core.log->accesses) {
            groups[{access.buffer, access.epoch}].push_back({access, &core});
        }
    }
    for (auto& [key, group] : groups) {
        SortByBegin(group);
        SweepOneEpoch(group, memory, findings);
    }
}

// ---- mixed blocks: flags order their cores too ---------------------------------------------------------------------

class Order {
public:
    explicit Order(const std::vector<CoreLog>& cores) : cores_(cores) {}

    bool Before(const CoreAccess& first, const CoreAccess& second) const
    {
        const CoreSeat& from = first.core->seat;
        if (from.block == second.core->seat.block && Knows(*second.core, second.access.knows, first)) return true;
        return PublishedIn(first) < second.access.epoch;
    }

private:
    static bool Knows(const CoreLog& core, uint32_t version, const CoreAccess& access)
    {
        const Clock& finished = (*core.knowledge)[version].finished[access.core->seat.inBlock];
        return access.access.seq <= finished[access.access.slot];
    }

    // The epoch at whose end, a SyncAll, all vector cores learn of the access; of a cube core's through its block.
    uint32_t PublishedIn(const CoreAccess& access) const
    {
        if (access.core->seat.kind == CoreKind::kVector) return access.access.epoch;
        uint32_t earliest = CachedWrite::kNever;
        for (const CoreLog& core : cores_) {
            if (core.seat.block != access.core->seat.block || core.seat.kind != CoreKind::kVector) continue;
            const std::vector<uint32_t>& versions = core.log->knewAtSyncAll;
            const auto knows = [&](uint32_t version) { return Knows(core, version, access); };
            const auto found = std::find_if(versions.begin(), versions.end(), knows);
            if (found != versions.end()) earliest = std::min(earliest, static_cast<uint32_t>(found - versions.begin()));
        }
        return earliest;
    }

    const std::vector<CoreLog>& cores_;
};

void SweepWithFlags(const Accesses& sorted, const Order& order, const GmMemory& memory, FindingLog& findings)
{
    std::vector<const CoreAccess*> open;  // those that reach as far as the current one
    for (const CoreAccess& current : sorted) {
        const auto behind = [&](const CoreAccess* other) { return other->access.end <= current.access.begin; };
        open.erase(std::remove_if(open.begin(), open.end(), behind), open.end());
        for (const CoreAccess* other : open) {
            if (other->core == current.core || !(other->access.write || current.access.write)) continue;
            if (order.Before(*other, current) || order.Before(current, *other)) continue;
            findings.Add(RaceFinding(*other, current, true, memory));
        }
        open.push_back(&current);
    }
}

void CheckMixed(const std::vector<CoreLog>& cores, const GmMemory& memory, FindingLog& findings)
{
    std::map<int, Accesses> byBuffer;
    for (const CoreLog& core : cores) {
        for (const GmAccess& access : core.log->accesses) byBuffer[access.buffer].push_back({access, &core});
    }
    const Order order(cores);
    for (auto& [buffer, accesses] : byBuffer) {
        SortByBegin(accesses);
        SweepWithFlags(accesses, order, memory, findings);
    }
}

}  // namespace

void CheckRaces(const std::vector<CoreLog>& cores, bool mixed, const GmMemory& memory, FindingLog& findings)
{
    if (mixed) {
        CheckMixed(cores, memory, findings);
    } else {
        CheckEpochs(cores, memory, findings);
    }
}

}  // namespace ascendc_host
