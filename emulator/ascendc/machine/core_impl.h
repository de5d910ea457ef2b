// The state of one core, shared by the files that implement core.h.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "access_log.h"
#include "block_scheduler.h"
#include "core.h"
#include "data_cache.h"
#include "finding_log.h"
#include "gm_memory.h"
#include "gm_order.h"
#include "launch.h"
#include "record.h"
#include "sync_sites.h"

namespace ascendc_host {

// What all cores of a launch share.
struct Machine {
    const LaunchOptions& options;
    GmMemory& memory;
    BlockScheduler& scheduler;
    const Suppression& suppression;
};

struct UbBuffer {
    std::string name;
    uint32_t offset;
    uint32_t bytes;
    uint32_t generation;
    BufferState state;
};

struct Flag {
    bool set = false;
    Clock finished;  // what has finished once the flag is set
    Where setAt;
};

struct RegisterState {
    uint64_t value = 0;
    uint32_t writtenBy = 0;  // number of the vector instruction
};

constexpr int kEventIds = 8;
constexpr int kEventIdsByHand = 6;  // 6 and 7 belong to the system (asc-devkit, SetFlag/WaitFlag)

class CoreImpl {
public:
    CoreImpl(const Machine& shared, int64_t blockIndex);

    // order
    uint32_t IssueOn(int slot, const char* call, Where where);  // -> the instruction's number on its pipe
    Clock FinishedBefore(int slot) const;                       // for the instruction issued last on `slot`
    void DrainPipe(int slot) { finished[slot][slot] = issued[slot]; }
    void DrainAll();
    Flag& FlagOf(int from, int to, int eventId) { return flags[(from * kSlots + to) * kEventIds + eventId]; }

    // findings
    void Report(Check check, Where where, const char* call, const std::string& what, const std::string& remedy);
    [[noreturn]] void Fault(Check check, Where where, const char* call, const std::string& what,
                            const std::string& remedy);
    void ReportOrder(Check check, const Instruction& instruction, const std::string& place, int slot, uint32_t seq);
    std::string DescribeUb(uint32_t ubOffset) const;

    // sync calls: counted, and false when a mutation run switches the call off
    bool EnterSync(const char* kind, Where where);
    void RecordSync(RecordKind kind, int slot, int other = kScalar, int eventId = 0);

    // global memory
    int RequireGm(const void* address, uint64_t bytes, const Instruction& instruction, const char* access);
    void GmReadByDma(const Instruction& instruction, int buffer, uint64_t begin, uint64_t end);
    void GmWriteByDma(const Instruction& instruction, int buffer, uint64_t begin, uint64_t end);
    bool GmReadByScalar(const Instruction& instruction, int buffer, uint64_t begin, uint64_t end);  // -> cache hit
    bool GmWriteByScalar(const Instruction& instruction, int buffer, uint64_t begin, uint64_t end);
    DataCache::Lookup FillLine(const Instruction& instruction, int buffer, uint64_t number);
    void ReportGmOrder(const Instruction& instruction, int buffer, const std::vector<GmOrder::Conflict>& conflicts);
    void CheckGmInitialised(const Instruction& instruction, int buffer, uint64_t begin, uint64_t end);
    void CheckGmWritable(const Instruction& instruction, int buffer, uint64_t begin);
    void CleanBytes(const Instruction& instruction, int buffer, uint64_t begin, uint64_t end);
    void WriteBack(const Instruction& instruction, int buffer, uint64_t lineBegin, const DataCache::Line& line);
    void LogLine(int buffer, uint64_t lineBegin, const DataCache::Line& line, uint32_t removedIn);

    void FinishKernel();  // what must not be left over at the end
    void ReleaseUb();     // the memory of a block that has ended

    const Machine machine;
    const int64_t block;
    bool faulted = false;
    bool abandoned = false;  // left at a SyncAll that the others never reach
    bool checking;

    std::vector<uint8_t> ub;
    UbShadow shadow;
    std::vector<UbBuffer> ubBuffers;
    uint32_t ubUsed = 0;

    std::array<Clock, kSlots> finished;         // [pipe]: what its next instruction is ordered after
    std::array<uint32_t, kSlots> issued = {};   // [pipe]: instructions so far
    std::array<Flag, kSlots * kSlots * kEventIds> flags;
    std::array<uint8_t, kSlots * kSlots> takenEventIds = {};  // bit mask
    std::array<RegisterState, static_cast<size_t>(Register::kCount)> registers;

    GmOrder gmOrder;
    AccessLog log;
    DataCache cache;
    int lastGmBuffer = 0;
    std::vector<Traffic> traffic;

    bool typeDeclared = false;
    bool typeDeclaredForKey = false;
    KernelType kernelType = KernelType::kAivOnly;
    uint64_t syncAllCalls = 0;

    SyncLog syncLog;
    BlockTrace trace;
    FindingLog findings;
};

// Who works on this thread; set by the launcher around the kernel.
void SetCurrentCore(Core* core);

}  // namespace ascendc_host
