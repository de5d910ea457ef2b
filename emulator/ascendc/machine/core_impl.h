// The state of one core, shared by the files that implement core.h.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "access_log.h"
#include "core.h"
#include "core_layout.h"
#include "core_scheduler.h"
#include "cross_core_flags.h"
#include "data_cache.h"
#include "finding_log.h"
#include "gm_memory.h"
#include "gm_order.h"
#include "launch.h"
#include "local_memory.h"
#include "record.h"
#include "sync_sites.h"

namespace ascendc_host {

// What all cores of a launch share.
struct Machine {
    const LaunchOptions& options;
    const CoreLayout& layout;
    GmMemory& memory;
    CoreScheduler& scheduler;
    const Suppression& suppression;
};

struct LocalBuffer {
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
    CoreImpl(const Machine& shared, const CoreSeat& place, CrossCoreFlags& blockFlags);

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
    std::string DescribeLocal(uint32_t offset) const;
    std::string Name() const;  // "block 3", "block 3 (AIV 1)"

    // Leaves the kernel if the type that it has declared so far wants other cores.
    void RequireShape(Where where);

    // sync calls: counted, and false when a mutation run switches the call off
    bool EnterSync(const char* kind, Where where);
    void RecordSync(RecordKind kind, int slot, int other = kScalar, int eventId = 0);

    // global memory
    int RequireGm(const void* address, uint64_t bytes, const Instruction& instruction, const char* access);
    void LogAccess(const Instruction& instruction, int buffer, bool write, uint64_t begin, uint64_t end);
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

    void CheckUnwaitedCrossCoreFlags(FindingLog& all) const;
    void FinishKernel();  // what must not be left over at the end
    void ReleaseLocal();  // the memory of a core that has ended

    const Machine machine;
    const CoreSeat seat;
    bool faulted = false;
    bool shapeKnown = false;  // nothing has been declared since it was last compared
    bool wrongShape = false;  // left because the kernel's type wants other cores
    bool abandoned = false;  // left at a SyncAll that the others never reach
    bool checking;

    std::vector<uint8_t> local;
    LocalShadow shadow;
    std::vector<LocalBuffer> localBuffers;
    std::array<uint32_t, kLocalRegions.size()> used = {};  // bytes, by memory

    std::array<Clock, kSlots> finished;         // [pipe]: what its next instruction is ordered after
    std::array<uint32_t, kSlots> issued = {};   // [pipe]: instructions so far
    std::array<Flag, kSlots * kSlots * kEventIds> flags;
    std::array<uint8_t, kSlots * kSlots> takenEventIds = {};  // bit mask
    std::array<RegisterState, static_cast<size_t>(Register::kCount)> registers;

    CrossCoreFlags& flagsOfBlock;
    BlockKnowledge::Counts crossCoreSets = {};  // so far, by flag
    std::vector<BlockKnowledge> knowledge;  // as it grew by waits for other cores; the last entry holds now

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
    CoreTrace trace;
    FindingLog findings;
};

// Who works on this thread; set by the launcher around the kernel.
void SetCurrentCore(Core* core);

}  // namespace ascendc_host
