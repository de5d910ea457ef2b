#include "core_impl.h"

#include "text.h"

namespace ascendc_host {

namespace {

constexpr uint8_t kGarbage = 0xFF;  // NaN in every floating point type

const char* HazardText(Check check)
{
    switch (check) {
        case Check::kReadAfterWrite:
            return "reads";
        case Check::kWriteAfterWrite:
            return "writes";
        default:
            return "overwrites";
    }
}

std::string RemedyFor(CoreKind kind, int earlier, int later)
{
    const std::string from = PipeName(PipeAt(kind, earlier));
    const std::string to = PipeName(PipeAt(kind, later));
    if (earlier == later) return "PipeBarrier<PIPE_" + from + ">() between the two";
    return "SetFlag and WaitFlag<HardEvent::" + from + "_" + to + "> between the two (a TQue does both)";
}

}  // namespace

CoreImpl::CoreImpl(const Machine& shared, const CoreSeat& place, CrossCoreFlags& blockFlags)
    : machine(shared),
      seat(place),
      checking(shared.options.checks),
      local(LocalBytes(place.kind), kGarbage),
      shadow(LocalBytes(place.kind)),
      flagsOfBlock(blockFlags),
      knowledge(1),
      gmOrder(shared.memory.Size()),
      log(shared.layout.Mixed()),
      traffic(shared.memory.Size())
{
    for (int buffer = 0; buffer < shared.memory.Size(); ++buffer) traffic[buffer].buffer = shared.memory[buffer].name;
}

std::string CoreImpl::Name() const
{
    const std::string name = "block " + std::to_string(seat.block);
    if (!machine.layout.Mixed()) return name;
    return name + (seat.kind == CoreKind::kCube ? " (AIC)" : " (AIV " + std::to_string(seat.subBlock) + ")");
}

void CoreImpl::RequireShape(Where where)
{
    if (shapeKnown || !typeDeclared) return;
    shapeKnown = true;
    if (ShapeOf(kernelType) == machine.layout.Shape()) return;
    wrongShape = true;
    Fault(Check::kUnsupported, where, "KERNEL_TASK_TYPE", "the kernel declares one type and then another",
          "declare the type of a tiling key once, before anything else");
}

uint32_t CoreImpl::IssueOn(int slot, const char* call, Where where)
{
    RequireShape(where);
    if (checking || machine.options.trace) trace.issues[slot].push_back({call, where});
    return ++issued[slot];
}

Clock CoreImpl::FinishedBefore(int slot) const
{
    Clock clock = finished[slot];
    if (machine.options.autoSync) {
        // the compiler orders dependent instructions of one pipe, and the scalar unit with everything
        for (int other = 0; other < kSlots; ++other) {
            if (slot == kScalar || other == kScalar || other == slot) clock[other] = issued[other];
        }
    }
    if (slot == kScalar || machine.options.autoSync) clock[slot] = issued[slot] - 1;
    return clock;
}

void CoreImpl::DrainAll()
{
    for (int slot = 0; slot < kSlots; ++slot) {
        for (int other = 0; other < kSlots; ++other) finished[slot][other] = issued[other];
    }
    gmOrder.Settle();
}

void CoreImpl::Report(Check check, Where where, const char* call, const std::string& what, const std::string& remedy)
{
    Finding finding;
    finding.check = check;
    finding.file = where.file;
    finding.line = where.line;
    finding.call = call;
    finding.what = what;
    finding.remedy = remedy;
    finding.block = seat.block;
    findings.Add(std::move(finding));
}

void CoreImpl::Fault(Check check, Where where, const char* call, const std::string& what, const std::string& remedy)
{
    Report(check, where, call, what, remedy);
    faulted = true;
    throw KernelFault();
}

std::string CoreImpl::DescribeLocal(uint32_t offset) const
{
    for (auto buffer = localBuffers.rbegin(); buffer != localBuffers.rend(); ++buffer) {
        if (offset >= buffer->offset && offset - buffer->offset < buffer->bytes) {
            return buffer->name + " + " + std::to_string(offset - buffer->offset);
        }
    }
    const LocalRegion& region = RegionAt(seat.kind, offset);
    return std::string(region.name) + " + " + std::to_string(offset - region.begin);
}

bool CoreImpl::EnterSync(const char* kind, Where where)
{
    RequireShape(where);
    syncLog.Count(where, kind);
    return !machine.suppression.Covers(where, kind);
}

void CoreImpl::RecordSync(RecordKind kind, int slot, int other, int eventId)
{
    if (!machine.options.trace) return;
    Record record;
    record.kind = kind;
    record.slot = static_cast<uint8_t>(slot);
    record.other = static_cast<uint8_t>(other);
    record.eventId = static_cast<uint8_t>(eventId);
    trace.records.push_back(record);
}

void CoreImpl::ReportOrder(Check check, const Instruction& instruction, const std::string& place, int slot,
                           uint32_t seq)
{
    if (findings.CountAgain(check, instruction.where_)) return;
    const Issue& earlier = trace.IssueOf(slot, seq);
    const bool earlierRead = check == Check::kWriteAfterRead;
    const int later = instruction.slot_;
    Report(check, instruction.where_, instruction.call_,
           std::string(instruction.call_) + " (pipe " + PipeName(PipeAt(seat.kind, later)) + ") " + HazardText(check) +
               " " + place + " while " + earlier.call + " at " + Place(earlier.where) + " (pipe " +
               PipeName(PipeAt(seat.kind, slot)) + ") may still be " + (earlierRead ? "reading" : "writing") + " it",
           RemedyFor(seat.kind, slot, later));
}

void CoreImpl::ReleaseLocal()
{
    local = {};
    shadow = LocalShadow(0);
}

void CoreImpl::FinishKernel()
{
    RequireShape(Where{});
    for (int from = 0; from < kSlots; ++from) {
        for (int to = 0; to < kSlots; ++to) {
            for (int id = 0; id < kEventIds; ++id) {
                const Flag& flag = FlagOf(from, to, id);
                if (!flag.set || !checking) continue;
                Report(Check::kFlagNeverWaited, flag.setAt, "SetFlag",
                       std::string("flag ") + PipeName(PipeAt(seat.kind, from)) + "_" +
                           PipeName(PipeAt(seat.kind, to)) + " with event id " + std::to_string(id) +
                           " is still set at the end of the kernel",
                       "WaitFlag it before the kernel ends; it would end a wait of the next kernel");
            }
        }
    }
    cache.ForEachLine([&](int buffer, uint64_t lineBegin, DataCache::Line& line) {
        LogLine(buffer, lineBegin, line, CachedWrite::kNever);
        if (line.dirty == 0 || !checking) return;
        Report(Check::kUnflushedWrite, line.where, "SetValue",
               "the scalar write to " + machine.memory.Describe(machine.memory[buffer].base + lineBegin) +
                   " .. is still in the data cache at the end of the kernel",
               "call DataCacheCleanAndInvalid on the line, or write by DMA");
    });
}

}  // namespace ascendc_host
