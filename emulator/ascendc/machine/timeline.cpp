#include "timeline.h"

#include <algorithm>
#include <limits>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>

#include "core_timing.h"
#include "cross_core_flags.h"
#include "shared_bandwidth.h"

namespace ascendc_host {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Event {
    enum class Kind { kDmaStart, kBlockEnd };
    double time;
    uint64_t number;  // ties: in the order in which they became known
    Kind kind;
    int64_t index;  // of the trace, or of the block
    const Record* record;
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
};

class Simulator {
public:
    Simulator(const RunResult& run, const TimelineOptions& options, const std::function<void(const Span&)>& onSpan)
        : run_(run),
          options_(options),
          onSpan_(onSpan),
          path_(run, options),
          memory_(options.cost.rateCold, options.cost.sharedCold),
          l2_(options.cost.rateHot, options.hot ? options.cost.sharedHot : BesideTheMemory(options.cost)),
          coresOfBlock_(CoresOfBlock(run)),
          blocks_(run.traces.size() / coresOfBlock_),
          cores_(run.traces.size()),
          ended_(run.traces.size(), false),
          flags_(blocks_)
    {
        timeline_.cores.resize(run.traces.size());
        for (const CoreTrace& trace : run.traces) meeting_ += trace.seat.kind == CoreKind::kVector ? 1 : 0;
        const bool cube = run.traces.front().seat.kind == CoreKind::kCube;
        timeline_.launchMicroseconds = cube ? options.cost.launchMixedMicroseconds : options.cost.launchMicroseconds;
    }

    Timeline Run()
    {
        const size_t places = Places();
        for (size_t place = 0; place < places && started_ < blocks_; ++place) StartNext(place, 0);
        while (Step()) {
        }
        if (std::find(ended_.begin(), ended_.end(), false) != ended_.end()) {
            throw std::logic_error("the timeline stopped before the end of the kernel");
        }
        for (const CoreTimes& core : timeline_.cores) timeline_.cycles = std::max(timeline_.cycles, core.end);
        return std::move(timeline_);
    }

private:
    // What is left of the L2's rate while the memory streams through it.
    static double BesideTheMemory(const Cost& cost)
    {
        return std::max(cost.sharedHot - cost.sharedCold, cost.sharedCold);
    }

    static size_t CoresOfBlock(const RunResult& run)
    {
        const auto ofFirst = [](const CoreTrace& trace) { return trace.seat.block == 0; };
        return static_cast<size_t>(std::count_if(run.traces.begin(), run.traces.end(), ofFirst));
    }

    // Blocks that run at the same time. Those that meet do, even if there are too many, which the run has reported.
    size_t Places() const
    {
        const auto meets = [](const Record& record) { return record.kind == RecordKind::kSyncAll; };
        const std::vector<Record>& last = run_.traces[coresOfBlock_ - 1].records;
        if (std::any_of(last.begin(), last.end(), meets)) return blocks_;
        // a device has two vector cores for each cube core
        const bool cube = run_.traces.front().seat.kind == CoreKind::kCube;
        return static_cast<size_t>(std::max<int64_t>(1, cube ? run_.cores / 2 : run_.cores));
    }

    void StartNext(size_t place, double time)
    {
        const size_t first = started_++ * coresOfBlock_;
        for (size_t i = 0; i < coresOfBlock_; ++i) {
            CoreTimes& times = timeline_.cores[first + i];
            times.seat = run_.traces[first + i].seat;
            times.core = static_cast<int64_t>(place * coresOfBlock_ + i);
            times.begin = time;
            cores_[first + i] =
                std::make_unique<CoreTiming>(run_.traces[first + i], options_, path_, SurroundingsOf(first + i));
        }
        for (size_t i = 0; i < coresOfBlock_; ++i) {
            cores_[first + i]->Begin(time);
            Follow(first + i);
        }
    }

    CoreTiming::Surroundings SurroundingsOf(size_t trace)
    {
        CoreTiming::Surroundings surroundings;
        surroundings.startDma = [this, trace](double time, const Record& record) {
            Post({time, 0, Event::Kind::kDmaStart, static_cast<int64_t>(trace), &record});
        };
        surroundings.setFlag = [this, trace](int flagId, double time) { SetFlag(trace, flagId, time); };
        surroundings.takeFlag = [this, trace](int flagId) { return TakeFlag(trace, flagId); };
        if (onSpan_) {
            surroundings.onSpan = [this, trace](const Record& record, double begin, double end, double done) {
                onSpan_({static_cast<int64_t>(trace), timeline_.cores[trace].core, begin, end, done, &record});
            };
        }
        return surroundings;
    }

    // ---- flags between the cores of a block ----

    template <typename Visit>
    void ForEachPartner(size_t trace, Visit visit)
    {
        const size_t first = trace - run_.traces[trace].seat.inBlock;
        for (size_t other = first; other < first + coresOfBlock_; ++other) {
            if (run_.traces[other].seat.kind != run_.traces[trace].seat.kind) visit(other);
        }
    }

    std::deque<double>& FlagOf(size_t sender, size_t receiver, int flagId)
    {
        const CoreSeat& seat = run_.traces[sender].seat;
        return flags_[seat.block].From(seat.inBlock, run_.traces[receiver].seat.inBlock, flagId);
    }

    void SetFlag(size_t trace, int flagId, double time)
    {
        ForEachPartner(trace, [&](size_t other) {
            FlagOf(trace, other, flagId).push_back(time);
            toWake_.push_back(other);
        });
    }

    std::optional<double> TakeFlag(size_t trace, int flagId)
    {
        double latest = 0;
        bool known = true;
        ForEachPartner(trace, [&](size_t other) {
            const std::deque<double>& times = FlagOf(other, trace, flagId);
            known = known && !times.empty();
            if (known) latest = std::max(latest, times.front());
        });
        if (!known) return std::nullopt;
        ForEachPartner(trace, [&](size_t other) { FlagOf(other, trace, flagId).pop_front(); });
        return latest;
    }

    // ---- events ----

    void Post(Event event)
    {
        event.number = posted_++;
        events_.push(event);
    }

    // The next thing that happens, over all cores.
    bool Step()
    {
        const double nextEvent = events_.empty() ? kNever : events_.top().time;
        SharedBandwidth& first = EndOf(l2_) < EndOf(memory_) ? l2_ : memory_;
        const double nextEnd = EndOf(first);
        if (nextEvent == kNever && nextEnd == kNever) return false;
        if (nextEnd <= nextEvent) {
            AdvanceTo(nextEnd);
            const SharedBandwidth::Flow flow = first.TakeEnded();
            cores_[flow.core]->DmaEnded(flow.slot, nextEnd);
            Follow(flow.core);
            return true;
        }
        const Event event = events_.top();
        events_.pop();
        AdvanceTo(event.time);
        if (event.kind == Event::Kind::kDmaStart) {
            StartDma(event.index, *event.record);
        } else if (started_ < blocks_) {
            const int64_t freed = timeline_.cores[event.index * coresOfBlock_].core;
            StartNext(static_cast<size_t>(freed) / coresOfBlock_, event.time);
        }
        return true;
    }

    static double EndOf(const SharedBandwidth& transfers) { return transfers.Idle() ? kNever : transfers.NextEnd(); }

    void AdvanceTo(double time)
    {
        memory_.AdvanceTo(time);
        l2_.AdvanceTo(time);
    }

    void StartDma(int64_t trace, const Record& record)
    {
        const CoreKind kind = run_.traces[trace].seat.kind;
        SharedBandwidth& transfers = path_.InL2(record) ? l2_ : memory_;
        const double share = path_.Share(record, kind, PipeAt(kind, record.slot));
        transfers.Start(path_.Bytes(record), share, trace, record.slot);
    }

    // After a core has gone on: is it at a SyncAll, or at its end? And who waited for its flags?
    void Follow(size_t trace)
    {
        CoreTiming& timing = *cores_[trace];
        if (timing.AtSyncAll() && !atSyncAll_.count(trace)) Arrive(trace, timing.Now());
        if (timing.Ended() && !ended_[trace]) End(trace);
        while (!toWake_.empty()) {
            const size_t woken = toWake_.back();
            toWake_.pop_back();
            if (cores_[woken] == nullptr) continue;  // its block has just begun: it starts with the flag set
            cores_[woken]->FlagSet();
            Follow(woken);
        }
    }

    void End(size_t trace)
    {
        const CoreTiming& timing = *cores_[trace];
        ended_[trace] = true;
        CoreTimes& times = timeline_.cores[trace];
        times.end = timing.Now();
        for (int slot = 0; slot < kSlots; ++slot) times.busy[slot] = timing.Busy(slot);
        const size_t first = trace - run_.traces[trace].seat.inBlock;
        double blockEnd = 0;
        for (size_t other = first; other < first + coresOfBlock_; ++other) {
            if (!ended_[other]) return;
            blockEnd = std::max(blockEnd, timeline_.cores[other].end);
        }
        Post({blockEnd, 0, Event::Kind::kBlockEnd, run_.traces[trace].seat.block, nullptr});
    }

    void Arrive(size_t trace, double time)
    {
        lastArrival_ = std::max(lastArrival_, time);
        atSyncAll_.insert(trace);
        if (atSyncAll_.size() < meeting_) return;
        const double release = lastArrival_ + options_.cost.syncAllMicroseconds * options_.cost.gigahertz * 1e3;
        const std::set<size_t> met = std::move(atSyncAll_);
        atSyncAll_.clear();
        lastArrival_ = 0;
        for (size_t core : met) cores_[core]->SyncAllEnded(release);
        for (size_t core : met) Follow(core);
    }

    const RunResult& run_;
    const TimelineOptions& options_;
    const std::function<void(const Span&)>& onSpan_;
    const MemoryPath path_;
    SharedBandwidth memory_;
    SharedBandwidth l2_;
    const size_t coresOfBlock_;
    const size_t blocks_;
    std::vector<std::unique_ptr<CoreTiming>> cores_;  // by trace
    std::vector<bool> ended_;
    std::vector<PendingSets<double>> flags_;  // by block: when each was set
    std::vector<size_t> toWake_;
    std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
    Timeline timeline_;
    size_t started_ = 0;  // blocks
    size_t meeting_ = 0;  // cores that take part in SyncAll
    std::set<size_t> atSyncAll_;
    double lastArrival_ = 0;
    uint64_t posted_ = 0;
};

void CheckCost(const Cost& cost)
{
    const auto require = [](bool holds, const char* name, const char* expected, double value) {
        if (holds) return;
        throw std::invalid_argument(std::string(name) + ": expected " + expected + ", got " + std::to_string(value));
    };
    require(cost.gigahertz > 0, "gigahertz", "a positive number", cost.gigahertz);
    require(cost.queueDepth >= 1, "queue_depth", "at least 1", cost.queueDepth);
    require(cost.rateCold > 0, "rate_cold", "a positive number", cost.rateCold);
    require(cost.rateHot > 0, "rate_hot", "a positive number", cost.rateHot);
    require(cost.cubeRateCold > 0, "cube_rate_cold", "a positive number", cost.cubeRateCold);
    require(cost.cubeRateHot > 0, "cube_rate_hot", "a positive number", cost.cubeRateHot);
    require(cost.cubeWriteRateHot > 0, "cube_write_rate_hot", "a positive number", cost.cubeWriteRateHot);
    require(cost.sharedCold > 0, "shared_cold", "a positive number", cost.sharedCold);
    require(cost.sharedHot > 0, "shared_hot", "a positive number", cost.sharedHot);
    require(cost.scatteredRowBytes >= 0, "scattered_row_bytes", "at least 0", cost.scatteredRowBytes);
    require(cost.sameAddressRead >= 0, "same_address_read", "at least 0", cost.sameAddressRead);
}

}  // namespace

Timeline Simulate(const RunResult& run, const TimelineOptions& options, const std::function<void(const Span&)>& onSpan)
{
    if (!run.completed) {
        throw std::invalid_argument("the kernel did not reach its end, so it has no timeline; see the findings");
    }
    if (run.traces.empty()) throw std::invalid_argument("the run was made with trace off, so it has no timeline");
    CheckCost(options.cost);
    return Simulator(run, options, onSpan).Run();
}

}  // namespace ascendc_host
