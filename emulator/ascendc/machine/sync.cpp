// Flags, barriers and SyncAll of one core.
#include <algorithm>

#include "core_impl.h"
#include "defects.h"
#include "text.h"

namespace ascendc_host {

namespace {

std::string FlagName(Pipe from, Pipe to, int eventId)
{
    return std::string(PipeName(from)) + "_" + PipeName(to) + " with event id " + std::to_string(eventId);
}

std::string PipesOf(CoreKind kind)
{
    return kind == CoreKind::kCube ? "S, M, MTE1, MTE2 and FIX" : "S, V, MTE2 and MTE3";
}

std::string CoreName(CoreKind kind) { return std::string("a ") + CoreKindName(kind) + " core"; }

// False when the flag is of a pipe that the core does not have.
bool RequireFlag(CoreImpl& core, const char* call, Pipe from, Pipe to, int eventId, Where where)
{
    const CoreKind kind = core.seat.kind;
    if (SlotOf(kind, from) == kNoSlot || SlotOf(kind, to) == kNoSlot) {
        core.Report(Check::kUnsupported, where, call, CoreName(kind) + " has no flag " + FlagName(from, to, eventId),
                    "use flags of the pipes " + PipesOf(kind));
        return false;
    }
    if (eventId < 0 || eventId >= kEventIds) {
        core.Fault(Check::kEventId, where, call, "there is no flag " + FlagName(from, to, eventId),
                   "use the event ids 0 to " + std::to_string(kEventIdsByHand - 1));
    }
    return true;
}

}  // namespace

void Core::SetFlag(Pipe from, Pipe to, int eventId, Where where)
{
    if (Faulted() || !RequireFlag(*impl_, "SetFlag", from, to, eventId, where)) return;
    if (!impl_->EnterSync("SetFlag", where)) return;
    const int source = SlotOf(Kind(), from);
    const int target = SlotOf(Kind(), to);
    const bool taken = (impl_->takenEventIds[source * kSlots + target] >> eventId & 1) != 0;
    if (impl_->checking && eventId >= kEventIdsByHand && !taken) {
        Report(Check::kEventId, where, "SetFlag",
               "event ids 6 and 7 belong to the system, but the kernel sets flag " + FlagName(from, to, eventId),
               "use the event ids 0 to 5, or take one with AllocEventID");
    }
    Flag& flag = impl_->FlagOf(source, target, eventId);
    if (impl_->checking && flag.set) {
        Report(Check::kFlagSetTwice, where, "SetFlag",
               "flag " + FlagName(from, to, eventId) + " is set again, but its setting at " + Place(flag.setAt) +
                   " has not been waited for",
               "WaitFlag between the two, or use another event id");
    }
    flag.set = true;
    flag.setAt = where;
    flag.finished = impl_->finished[source];
    flag.finished[source] = impl_->issued[source];
    impl_->RecordSync(RecordKind::kSetFlag, source, target, eventId);
}

void Core::WaitFlag(Pipe from, Pipe to, int eventId, Where where)
{
    if (Faulted() || !RequireFlag(*impl_, "WaitFlag", from, to, eventId, where)) return;
    if (!impl_->EnterSync("WaitFlag", where)) return;
    const int source = SlotOf(Kind(), from);
    const int target = SlotOf(Kind(), to);
    Flag& flag = impl_->FlagOf(source, target, eventId);
    if (!flag.set) {
        Fault(Check::kWaitWithoutSet, where, "WaitFlag",
              "nothing has set flag " + FlagName(from, to, eventId) + "; the device would hang here",
              "SetFlag the same event with the same id before");
    }
    flag.set = false;
    impl_->finished[target].Join(flag.finished);
    if (target == kScalar) {
        // the scalar unit issues everything that follows, so all of it comes after what the scalar unit has seen
        for (Clock& clock : impl_->finished) clock.Join(flag.finished);
    }
    impl_->RecordSync(RecordKind::kWaitFlag, target, source, eventId);
}

void Core::Barrier(Pipe pipe, Where where)
{
    if (Faulted() || !impl_->EnterSync("PipeBarrier", where)) return;
    if (Planted(Defect::kTopOfUbTaken) && Kind() == CoreKind::kVector) {
        constexpr uint32_t taken = 1024;
        std::fill_n(Local(RegionOf(Memory::kUb).usable - taken), taken, uint8_t{0x5A});
    }
    if (pipe == Pipe::kAll) {
        impl_->DrainAll();
        impl_->RecordSync(RecordKind::kBarrierAll, kScalar);
        return;
    }
    const int slot = SlotOf(Kind(), pipe);
    if (slot == kNoSlot) return;  // a pipe without instructions has nothing to wait for
    impl_->DrainPipe(slot);
    impl_->RecordSync(RecordKind::kBarrier, slot);
}

void Core::SyncAll(Where where)
{
    if (Faulted() || !impl_->EnterSync("SyncAll", where)) return;
    const LaunchOptions& options = impl_->machine.options;
    if (Kind() == CoreKind::kCube) {
        Fault(Check::kUnsupported, where, "SyncAll", "a cube core takes part, but in this model vector cores alone do",
              "call it under ASCEND_IS_AIV, and order the cores of a block by CrossCoreSetFlag and CrossCoreWaitFlag");
    }
    if (impl_->kernelType == KernelType::kAivOnly) {
        Report(Check::kSyncAllKernelType, where, "SyncAll",
               impl_->typeDeclared ? "the kernel type is KERNEL_TYPE_AIV_ONLY, which does not start what SyncAll needs"
                                   : "no kernel type is declared, so that of a vector kernel is KERNEL_TYPE_AIV_ONLY, "
                                     "which does not start what SyncAll needs",
               "declare KERNEL_TYPE_MIX_AIV_1_0");
    }
    const int64_t wanted = impl_->machine.layout.VectorCores();
    if (wanted > options.cores) {
        Report(Check::kSyncAllBlocks, where, "SyncAll",
               std::to_string(options.blocks) + " blocks want " + std::to_string(wanted) + " vector cores of " +
                   std::to_string(options.cores) + ": the blocks that have no core yet never arrive",
               "launch at most as many blocks as there are cores");
    }
    impl_->DrainAll();
    ++impl_->syncAllCalls;
    impl_->RecordSync(RecordKind::kSyncAll, kScalar);
    if (Planted(Defect::kSyncAllLetsThrough)) return;
    const CoreScheduler::Meeting meeting = impl_->machine.scheduler.SyncAll(impl_->seat.index);
    impl_->log.NextEpoch(static_cast<uint32_t>(impl_->knowledge.size() - 1));
    if (meeting == CoreScheduler::Meeting::kAllArrived) return;
    impl_->faulted = true;
    impl_->abandoned = true;
    if (meeting == CoreScheduler::Meeting::kSomeEnded) {
        Report(Check::kSyncAllCount, where, "SyncAll",
               impl_->Name() + " waits in its SyncAll number " + std::to_string(impl_->syncAllCalls) +
                   ", but another block has ended the kernel without calling it",
               "let every block reach every SyncAll, also blocks without work");
    }
    throw KernelFault();
}

int Core::AllocateEventId(Pipe from, Pipe to, Where where)
{
    const int source = SlotOf(Kind(), from);
    const int target = SlotOf(Kind(), to);
    if (source == kNoSlot || target == kNoSlot) {
        Fault(Check::kUnsupported, where, "AllocEventID", CoreName(Kind()) + " has no event " + FlagName(from, to, 0),
              "use events of the pipes " + PipesOf(Kind()));
    }
    uint8_t& taken = impl_->takenEventIds[source * kSlots + target];
    for (int id = 0; id < kEventIds; ++id) {
        if ((taken >> id & 1) != 0) continue;
        taken = static_cast<uint8_t>(taken | 1u << id);
        return id;
    }
    if (Faulted()) return 0;
    Fault(Check::kEventId, where, "AllocEventID",
          "all " + std::to_string(kEventIds) + " event ids of " + PipeName(from) + "_" + PipeName(to) + " are taken",
          "release event ids, or use queues of less depth");
}

void Core::ReleaseEventId(Pipe from, Pipe to, int eventId)
{
    const int source = SlotOf(Kind(), from);
    const int target = SlotOf(Kind(), to);
    if (source == kNoSlot || target == kNoSlot || eventId < 0 || eventId >= kEventIds) return;
    uint8_t& taken = impl_->takenEventIds[source * kSlots + target];
    taken = static_cast<uint8_t>(taken & ~(1u << eventId));
}

}  // namespace ascendc_host
