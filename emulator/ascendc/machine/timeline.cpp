#include "timeline.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "block_timing.h"
#include "shared_bandwidth.h"

namespace ascendc_host {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Event {
    enum class Kind { kDmaStart, kBlockEnd };
    double time;
    uint64_t number;  // ties: in the order in which they became known
    Kind kind;
    int64_t block;
    double bytes;
    int slot;
    bool operator>(const Event& other) const {
        return time != other.time ? time > other.time : number > other.number;
    }
};

class Simulator {
public:
    Simulator(const RunResult& run, const TimelineOptions& options, const std::function<void(const Span&)>& onSpan)
        : run_(run),
          options_(options),
          onSpan_(onSpan),
          memory_(options.hot ? options.cost.rateHot : options.cost.rateCold,
                  options.hot ? options.cost.sharedHot : options.cost.sharedCold),
          blocks_(run.blocks.size()),
          ended_(run.blocks.size(), false) {
        timeline_.blocks.resize(run.blocks.size());
    }

    Timeline Run() {
        const auto cores = static_cast<size_t>(std::max(run_.cores, SyncAllNeeds()));
        for (size_t core = 0; core < cores && started_ < blocks_.size(); ++core) StartNext(core, 0);
        while (Step()) {
        }
        if (std::find(ended_.begin(), ended_.end(), false) != ended_.end()) {
            throw std::logic_error("the timeline stopped before the end of the kernel");
        }
        for (const BlockTimes& block : timeline_.blocks) timeline_.cycles = std::max(timeline_.cycles, block.end);
        return std::move(timeline_);
    }

private:
    // Blocks that meet run at the same time; with more blocks than cores the run has reported that already.
    int64_t SyncAllNeeds() const {
        const auto meets = [](const Record& record) { return record.kind == RecordKind::kSyncAll; };
        const std::vector<Record>& first = run_.blocks.front().records;
        const bool any = std::any_of(first.begin(), first.end(), meets);
        return any ? static_cast<int64_t>(run_.blocks.size()) : 0;
    }

    void StartNext(int64_t core, double time) {
        const auto block = static_cast<int64_t>(started_++);
        timeline_.blocks[block].core = core;
        timeline_.blocks[block].begin = time;
        blocks_[block] =
            std::make_unique<BlockTiming>(run_.blocks[block], options_, DmaStarter(block), SpanSink(block));
        blocks_[block]->Begin(time);
        Follow(block);
    }

    BlockTiming::StartDma DmaStarter(int64_t block) {
        return [this, block](double time, double bytes, int slot) {
            Post({time, 0, Event::Kind::kDmaStart, block, bytes, slot});
        };
    }

    std::function<void(const Record&, double, double, double)> SpanSink(int64_t block) {
        if (!onSpan_) return nullptr;
        return [this, block](const Record& record, double begin, double end, double done) {
            onSpan_({block, timeline_.blocks[block].core, begin, end, done, &record});
        };
    }

    void Post(Event event) {
        event.number = posted_++;
        events_.push(event);
    }

    // The next thing that happens, over all cores.
    bool Step() {
        const double nextEvent = events_.empty() ? kNever : events_.top().time;
        const double nextEnd = memory_.Idle() ? kNever : memory_.NextEnd();
        if (nextEvent == kNever && nextEnd == kNever) return false;
        if (nextEnd <= nextEvent) {
            memory_.AdvanceTo(nextEnd);
            const SharedBandwidth::Flow flow = memory_.TakeEnded();
            blocks_[flow.block]->DmaEnded(flow.slot, nextEnd);
            Follow(flow.block);
            return true;
        }
        const Event event = events_.top();
        events_.pop();
        memory_.AdvanceTo(event.time);
        if (event.kind == Event::Kind::kDmaStart) {
            memory_.Start(event.bytes, event.block, event.slot);
        } else if (started_ < blocks_.size()) {
            StartNext(timeline_.blocks[event.block].core, event.time);
        }
        return true;
    }

    // After a block has gone on: is it at a SyncAll, or at its end?
    void Follow(int64_t block) {
        BlockTiming& timing = *blocks_[block];
        if (timing.AtSyncAll()) Arrive(timing.Now());
        if (!timing.Ended() || ended_[block]) return;
        ended_[block] = true;
        BlockTimes& times = timeline_.blocks[block];
        times.end = timing.Now();
        for (int slot = 0; slot < kSlots; ++slot) times.busy[slot] = timing.Busy(slot);
        Post({timing.Now(), 0, Event::Kind::kBlockEnd, block, 0, 0});
    }

    void Arrive(double time) {
        lastArrival_ = std::max(lastArrival_, time);
        if (++arrived_ < blocks_.size()) return;
        const double release = lastArrival_ + options_.cost.syncAllMicroseconds * options_.cost.gigahertz * 1e3;
        arrived_ = 0;
        lastArrival_ = 0;
        for (size_t block = 0; block < blocks_.size(); ++block) blocks_[block]->SyncAllEnded(release);
        for (size_t block = 0; block < blocks_.size(); ++block) Follow(static_cast<int64_t>(block));
    }

    const RunResult& run_;
    const TimelineOptions& options_;
    const std::function<void(const Span&)>& onSpan_;
    SharedBandwidth memory_;
    std::vector<std::unique_ptr<BlockTiming>> blocks_;
    std::vector<bool> ended_;
    std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
    Timeline timeline_;
    size_t started_ = 0;
    size_t arrived_ = 0;
    double lastArrival_ = 0;
    uint64_t posted_ = 0;
};

void CheckCost(const Cost& cost) {
    const auto require = [](bool holds, const char* name, const char* expected, double value) {
        if (holds) return;
        throw std::invalid_argument(std::string(name) + ": expected " + expected + ", got " + std::to_string(value));
    };
    require(cost.gigahertz > 0, "gigahertz", "a positive number", cost.gigahertz);
    require(cost.queueDepth >= 1, "queue_depth", "at least 1", cost.queueDepth);
    require(cost.rateCold > 0, "rate_cold", "a positive number", cost.rateCold);
    require(cost.rateHot > 0, "rate_hot", "a positive number", cost.rateHot);
    require(cost.sharedCold > 0, "shared_cold", "a positive number", cost.sharedCold);
    require(cost.sharedHot > 0, "shared_hot", "a positive number", cost.sharedHot);
}

}  // namespace

Timeline Simulate(const RunResult& run, const TimelineOptions& options,
                  const std::function<void(const Span&)>& onSpan) {
    if (!run.completed) {
        throw std::invalid_argument("the kernel did not reach its end, so it has no timeline; see the findings");
    }
    if (run.blocks.empty()) throw std::invalid_argument("the run was made with trace off, so it has no timeline");
    CheckCost(options.cost);
    return Simulator(run, options, onSpan).Run();
}

}  // namespace ascendc_host
