#include "block_timing.h"

#include <algorithm>

namespace ascendc_host {

BlockTiming::BlockTiming(const BlockTrace& trace, const TimelineOptions& options, StartDma startDma,
                         std::function<void(const Record&, double, double, double)> onSpan)
    : trace_(trace), options_(options), startDma_(std::move(startDma)), onSpan_(std::move(onSpan)) {}

void BlockTiming::Begin(double time) {
    scalar_ = time;
    Advance();
}

void BlockTiming::SyncAllEnded(double time) {
    scalar_ = time;
    state_ = State::kRunning;
    Advance();
}

void BlockTiming::DmaEnded(int slot, double time) {
    Pipe& pipe = pipes_[slot];
    const Record& record = *pipe.dma;
    pipe.dma = nullptr;
    const Cost& cost = options_.cost;
    const bool read = kSlotPipes[slot] == ascendc_host::Pipe::kMte2;
    const double latency = !read ? cost.writeLatency : options_.hot ? cost.readLatencyHot : cost.readLatencyCold;
    pipe.free = std::max(time, pipe.dmaBegin + cost.dmaCommand * record.commands);
    pipe.busy += pipe.free - pipe.dmaBegin;
    pipe.allDone = std::max(pipe.allDone, pipe.free + latency);
    if (onSpan_) onSpan_(record, pipe.dmaBegin, pipe.free, pipe.free + latency);
    Advance();
}

void BlockTiming::Advance() {
    for (bool moved = true; moved;) {
        moved = AdvanceScalar();
        for (int slot = 0; slot < kSlots; ++slot) moved = AdvancePipe(slot) || moved;
    }
}

// ---- the scalar unit -----------------------------------------------------------------------------------------------

bool BlockTiming::AdvanceScalar() {
    const size_t before = next_;
    while (state_ == State::kRunning && next_ < trace_.records.size()) {
        const Record& record = trace_.records[next_];
        if (record.kind == RecordKind::kSyncAll || record.kind == RecordKind::kBarrierAll) {
            if (!Drained()) break;
            scalar_ += options_.cost.scalarIssue;
            pipes_[kScalar].busy += options_.cost.scalarIssue;
            if (record.kind == RecordKind::kSyncAll) state_ = State::kSyncAll;
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

bool BlockTiming::IssueToPipe(const Record& record) {
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

bool BlockTiming::WaitOnScalar(const Record& record) {
    std::deque<double>& times = FlagTimes(record);
    if (times.empty()) return false;
    scalar_ = std::max(scalar_ + options_.cost.scalarIssue, times.front());
    pipes_[kScalar].busy += options_.cost.scalarIssue;
    times.pop_front();
    return true;
}

void BlockTiming::ScalarInstruction(const Record& record) {
    const Cost& cost = options_.cost;
    double cycles = cost.scalarIssue;
    if (record.kind == RecordKind::kScalar) {
        switch (record.scalar) {
            case ScalarAccess::kUbRead:
            case ScalarAccess::kUbWrite: cycles = cost.scalarUb; break;
            case ScalarAccess::kGmHit: cycles = cost.scalarGmHit; break;
            case ScalarAccess::kGmMiss: cycles = cost.scalarGmMiss; break;
            case ScalarAccess::kIssueOnly: break;
        }
        if (onSpan_) onSpan_(record, scalar_, scalar_ + cycles, scalar_ + cycles);
    }
    scalar_ += cycles;
    pipes_[kScalar].busy += cycles;
    if (record.kind == RecordKind::kSetFlag) FlagTimes(record).push_back(scalar_);
}

// Whether all queues are empty and all ends known; moves the scalar unit to the last of them.
bool BlockTiming::Drained() {
    for (const Pipe& pipe : pipes_) {
        if (!pipe.queue.empty() || pipe.dma != nullptr) return false;
    }
    for (const Pipe& pipe : pipes_) scalar_ = std::max(scalar_, pipe.allDone);
    return true;
}

// ---- the other pipes -----------------------------------------------------------------------------------------------

bool BlockTiming::AdvancePipe(int slot) {
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
bool BlockTiming::Start(Pipe& pipe, const Entry& entry) {
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
        case RecordKind::kVector:
            StartVector(pipe, record, begin);
            pipe.left.push_back(begin);
            return true;
        default:
            pipe.dma = &record;
            pipe.dmaBegin = begin;
            pipe.left.push_back(begin);
            startDma_(begin, static_cast<double>(record.gmBytes), record.slot);
            return true;
    }
    pipe.free = begin;
    pipe.left.push_back(begin);
    return true;
}

void BlockTiming::StartVector(Pipe& pipe, const Record& record, double begin) {
    double cycles = options_.cost.vectorHead + static_cast<double>(record.repeats) * record.cyclesPerRepeat;
    if (options_.bankConflicts) cycles += record.conflicts;
    pipe.free = begin + cycles;
    pipe.busy += cycles;
    pipe.allDone = std::max(pipe.allDone, pipe.free);
    if (onSpan_) onSpan_(record, begin, pipe.free, pipe.free);
}

std::deque<double>& BlockTiming::FlagTimes(const Record& record) {
    const bool set = record.kind == RecordKind::kSetFlag;
    const int from = set ? record.slot : record.other;
    const int to = set ? record.other : record.slot;
    return flagTimes_[(from * kSlots + to) * 8 + record.eventId];
}

}  // namespace ascendc_host
