#include "core_timing.h"

#include <algorithm>

namespace ascendc_host {

CoreTiming::CoreTiming(const CoreTrace& trace, const TimelineOptions& options, const MemoryPath& memory,
                       Surroundings surroundings)
    : trace_(trace), options_(options), memory_(memory), surroundings_(std::move(surroundings))
{}

void CoreTiming::Begin(double time)
{
    scalar_ = time;
    Advance();
}

void CoreTiming::SyncAllEnded(double time)
{
    scalar_ = time;
    state_ = State::kRunning;
    Advance();
}

void CoreTiming::DmaEnded(int slot, double time)
{
    Pipe& pipe = pipes_[slot];
    const Record& record = *pipe.dma;
    pipe.dma = nullptr;
    const Cost& cost = options_.cost;
    const bool read = PipeAt(trace_.seat.kind, slot) == ascendc_host::Pipe::kMte2;
    const double latency = read ? memory_.ReadLatency(record) : cost.writeLatency;
    const double least = std::max<double>(cost.dmaCommand, record.minimumCycles);
    pipe.free = std::max(time, pipe.dmaBegin + least);
    pipe.busy += pipe.free - pipe.dmaBegin;
    pipe.allDone = std::max(pipe.allDone, pipe.free + latency);
    if (surroundings_.onSpan) surroundings_.onSpan(record, pipe.dmaBegin, pipe.free, pipe.free + latency);
    Advance();
}

void CoreTiming::Advance()
{
    for (bool moved = true; moved;) {
        moved = AdvanceScalar();
        for (int slot = 0; slot < kSlots; ++slot) moved = AdvancePipe(slot) || moved;
    }
}

// ---- the scalar unit -----------------------------------------------------------------------------------------------

bool CoreTiming::AdvanceScalar()
{
    const size_t before = next_;
    while (state_ == State::kRunning && next_ < trace_.records.size()) {
        const Record& record = trace_.records[next_];
        if (record.kind == RecordKind::kSyncAll || record.kind == RecordKind::kBarrierAll) {
            if (!Drained()) break;
            scalar_ += options_.cost.scalarIssue;
            pipes_[kScalar].busy += options_.cost.scalarIssue;
            if (record.kind == RecordKind::kSyncAll) state_ = State::kSyncAll;
        } else if (record.kind == RecordKind::kCrossCoreWait) {
            if (!WaitForOtherCores(record)) break;
        } else if (record.slot != kScalar) {
            if (!IssueToPipe(record)) break;
        } else if (record.kind == RecordKind::kWaitFlag) {
            if (!WaitOnScalar(record)) break;
        } else {
            ScalarInstruction(record);
        }
        ++next_;
    }
    if (state_ == State::kRunning && next_ == trace_.records.size() && Drained()) state_ = State::kEnded;
    return next_ != before;
}

bool CoreTiming::IssueToPipe(const Record& record)
{
    Pipe& pipe = pipes_[record.slot];
    const auto depth = static_cast<size_t>(options_.cost.queueDepth);
    if (pipe.queue.size() >= depth) return false;  // nobody knows yet when an entry will leave
    if (pipe.pushed >= depth) {
        // the entry `depth` places before this one has left; the ones after it are still listed behind it
        scalar_ = std::max(scalar_, pipe.left[pipe.left.size() + pipe.queue.size() - depth]);
    }
    scalar_ += options_.cost.scalarIssue;
    pipes_[kScalar].busy += options_.cost.scalarIssue;
    pipe.queue.push_back({&record, scalar_});
    ++pipe.pushed;
    return true;
}

bool CoreTiming::WaitOnScalar(const Record& record)
{
    std::deque<double>& times = FlagTimes(record);
    if (times.empty()) return false;
    scalar_ = std::max(scalar_ + options_.cost.scalarIssue, times.front());
    pipes_[kScalar].busy += options_.cost.scalarIssue;
    times.pop_front();
    return true;
}

bool CoreTiming::WaitForOtherCores(const Record& record)
{
    const std::optional<double> set = surroundings_.takeFlag(record.eventId);
    if (!set) return false;
    scalar_ = std::max(scalar_ + options_.cost.scalarIssue, *set + options_.cost.crossCoreFlag);
    pipes_[kScalar].busy += options_.cost.scalarIssue;
    return true;
}

// Of the data cache, in one number.
static uint64_t LineOf(const Record& record) { return static_cast<uint64_t>(record.gmBuffer) << 32 | record.cacheLine; }

double CoreTiming::ScalarCycles(const Record& record)
{
    const Cost& cost = options_.cost;
    const double fill = cost.scalarGmMiss + record.readersBefore * cost.sameAddressRead;
    switch (record.scalar) {
        case ScalarAccess::kUbRead:
        case ScalarAccess::kUbWrite:
            return cost.scalarUb;
        case ScalarAccess::kGmHit: {
            // a line that was preloaded may still be on its way
            const auto filled = filled_.find(LineOf(record));
            const double wait = filled == filled_.end() ? 0 : filled->second - scalar_;
            return std::max(wait, 0.0) + cost.scalarGmHit;
        }
        case ScalarAccess::kGmMiss:
            return fill;
        case ScalarAccess::kGmCopy:
            return cost.dmaCommand + memory_.ReadCycles(record) + memory_.ReadLatency(record);
        case ScalarAccess::kGmPreload:
            filled_[LineOf(record)] = scalar_ + cost.scalarIssue + fill;
            return cost.scalarIssue;
        case ScalarAccess::kIssueOnly:
            break;
    }
    return cost.scalarIssue;
}

void CoreTiming::ScalarInstruction(const Record& record)
{
    double cycles = options_.cost.scalarIssue;
    if (record.kind == RecordKind::kScalar) {
        cycles = ScalarCycles(record);
        if (surroundings_.onSpan) surroundings_.onSpan(record, scalar_, scalar_ + cycles, scalar_ + cycles);
    }
    scalar_ += cycles;
    pipes_[kScalar].busy += cycles;
    if (record.kind == RecordKind::kSetFlag) FlagTimes(record).push_back(scalar_);
    if (record.kind == RecordKind::kCrossCoreSet) surroundings_.setFlag(record.eventId, scalar_);
}

// Whether all queues are empty and all ends known; moves the scalar unit to the last of them.
bool CoreTiming::Drained()
{
    for (const Pipe& pipe : pipes_) {
        if (!pipe.queue.empty() || pipe.dma != nullptr) return false;
    }
    for (const Pipe& pipe : pipes_) scalar_ = std::max(scalar_, pipe.allDone);
    return true;
}

// ---- the other pipes -----------------------------------------------------------------------------------------------

bool CoreTiming::AdvancePipe(int slot)
{
    Pipe& pipe = pipes_[slot];
    const size_t depth = static_cast<size_t>(options_.cost.queueDepth);
    bool moved = false;
    while (!pipe.queue.empty() && pipe.dma == nullptr && Start(pipe, pipe.queue.front())) {
        pipe.queue.pop_front();
        if (pipe.left.size() > depth) pipe.left.pop_front();
        moved = true;
    }
    return moved;
}

// Takes the entry out of the queue at the time at which it starts; false when that is not known yet.
bool CoreTiming::Start(Pipe& pipe, const Entry& entry)
{
    const Record& record = *entry.record;
    double begin = std::max(entry.issued, pipe.free);
    switch (record.kind) {
        case RecordKind::kSetFlag:
            FlagTimes(record).push_back(std::max(begin, pipe.allDone));
            break;
        case RecordKind::kWaitFlag: {
            std::deque<double>& times = FlagTimes(record);
            if (times.empty()) return false;
            begin = std::max(begin, times.front());
            times.pop_front();
            break;
        }
        case RecordKind::kBarrier:
            begin = std::max(begin, pipe.allDone);
            break;
        case RecordKind::kCrossCoreSet:
            surroundings_.setFlag(record.eventId, std::max(begin, pipe.allDone));
            break;
        case RecordKind::kCompute:
            StartCompute(pipe, record, begin);
            pipe.left.push_back(begin);
            return true;
        default:
            pipe.dma = &record;
            pipe.dmaBegin = begin;
            pipe.left.push_back(begin);
            surroundings_.startDma(begin, record);
            return true;
    }
    pipe.free = begin;
    pipe.left.push_back(begin);
    return true;
}

void CoreTiming::StartCompute(Pipe& pipe, const Record& record, double begin)
{
    const bool cube = trace_.seat.kind == CoreKind::kCube;
    const double head = cube ? options_.cost.cubeHead : options_.cost.vectorHead;
    const double slowdown = cube ? 1 : options_.cost.vectorRepeat;
    const double repeat = record.gathersMask ? options_.cost.gatherMaskRepeat : slowdown * record.cyclesPerRepeat;
    double cycles = head + static_cast<double>(record.repeats) * repeat;
    if (options_.bankConflicts) cycles += record.conflicts;
    pipe.free = begin + cycles;
    pipe.busy += cycles;
    pipe.allDone = std::max(pipe.allDone, pipe.free);
    if (surroundings_.onSpan) surroundings_.onSpan(record, begin, pipe.free, pipe.free);
}

std::deque<double>& CoreTiming::FlagTimes(const Record& record)
{
    const bool set = record.kind == RecordKind::kSetFlag;
    const int from = set ? record.slot : record.other;
    const int to = set ? record.other : record.slot;
    return flagTimes_[(from * kSlots + to) * 8 + record.eventId];
}

}  // namespace ascendc_host
