// The time of one core: its scalar unit issues the recorded instructions into the queues of the pipes.
//
// Each part runs ahead as far as its times are known. What is unknown is only when a DMA ends, because all cores
// share the memory: the simulator calls DmaEnded for that, and then the parts that waited go on. A part that waits
// goes on at or after the end it waited for, so the simulator never sees a time before its own.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>

#include "memory_path.h"
#include "timeline.h"

namespace ascendc_host {

class CoreTiming {
public:
    // What a core needs of the others.
    struct Surroundings {
        std::function<void(double time, const Record& record)> startDma;
        std::function<void(int flagId, double time)> setFlag;       // for the other cores of the block
        std::function<std::optional<double>(int flagId)> takeFlag;  // when all have set it; empty: not known yet
        std::function<void(const Record&, double begin, double end, double done)> onSpan;  // may be empty
    };

    CoreTiming(const CoreTrace& trace, const TimelineOptions& options, const MemoryPath& memory,
               Surroundings surroundings);

    void Begin(double time);
    void DmaEnded(int slot, double time);
    void SyncAllEnded(double time);
    void FlagSet() { Advance(); }  // another core of the block has set a flag

    bool AtSyncAll() const { return state_ == State::kSyncAll; }
    bool Ended() const { return state_ == State::kEnded; }
    double Now() const { return scalar_; }  // of the scalar unit: the arrival at SyncAll, the end of the block
    double Busy(int slot) const { return pipes_[slot].busy; }

private:
    enum class State { kRunning, kSyncAll, kEnded };

    struct Entry {
        const Record* record;
        double issued;
    };
    struct Pipe {
        std::deque<Entry> queue;
        std::deque<double> left;  // when the newest entries left the queue; as many as the queue is deep
        uint64_t pushed = 0;
        double free = 0;        // when the next entry can start
        double allDone = 0;     // when everything so far has finished
        const Record* dma = nullptr;  // a transfer whose end is not known yet
        double dmaBegin = 0;
        double busy = 0;
    };

    void Advance();
    bool AdvanceScalar();
    bool AdvancePipe(int slot);
    bool IssueToPipe(const Record& record);
    bool WaitOnScalar(const Record& record);
    bool WaitForOtherCores(const Record& record);
    bool Drained();
    bool Start(Pipe& pipe, const Entry& entry);
    void StartCompute(Pipe& pipe, const Record& record, double begin);
    void ScalarInstruction(const Record& record);
    double ScalarCycles(const Record& record);
    std::deque<double>& FlagTimes(const Record& record);

    const CoreTrace& trace_;
    const TimelineOptions& options_;
    const MemoryPath& memory_;
    const Surroundings surroundings_;

    State state_ = State::kRunning;
    size_t next_ = 0;  // record
    double scalar_ = 0;
    std::unordered_map<uint64_t, double> filled_;  // when the preloaded lines of the data cache are there
    std::array<Pipe, kSlots> pipes_;
    std::array<std::deque<double>, kSlots * kSlots * 8> flagTimes_;  // set and not yet waited for, oldest first
};

}  // namespace ascendc_host
