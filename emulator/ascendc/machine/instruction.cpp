#include <algorithm>
#include <cstring>
#include <exception>

#include "core_impl.h"
#include "text.h"

namespace ascendc_host {

namespace {

constexpr uint32_t kAlways = ~0u;

bool EndsInside(uint64_t first, uint64_t end, uint64_t size) { return first <= end && end <= size; }

int RequireSlot(CoreImpl& core, Pipe pipe, const char* call, Where where)
{
    const int slot = SlotOf(core.seat.kind, pipe);
    if (slot == kNoSlot) {
        const std::string kind = CoreKindName(core.seat.kind);
        core.Fault(Check::kUnsupported, where, call, "a " + kind + " core has no pipe " + PipeName(pipe),
                   "use instructions of the " + kind + " core");
    }
    return slot;
}

RecordKind KindOf(Pipe pipe)
{
    switch (pipe) {
        case Pipe::kS:
            return RecordKind::kScalar;
        case Pipe::kV:
        case Pipe::kM:
        case Pipe::kMte1:
            return RecordKind::kCompute;
        default:
            return RecordKind::kDma;
    }
}

bool InsideOneMemory(CoreKind kind, const LocalView& view)
{
    const LocalRegion& region = RegionAt(kind, view.offset);
    return view.offset <= region.begin + region.bytes && view.size <= region.begin + region.bytes - view.offset;
}

}  // namespace

Instruction::Instruction(Pipe pipe, const char* call, Where where)
    : core_(Core::Current().Impl()),
      shadow_(core_.checking ? &core_.shadow : nullptr),
      slot_(RequireSlot(core_, pipe, call, where)),
      seq_(core_.IssueOn(slot_, call, where)),
      call_(call),
      where_(where)
{
    finished_ = core_.FinishedBefore(slot_);
    drained_ = finished_;
    drained_[slot_] = kAlways;
}

Instruction::~Instruction()
{
    const Pipe pipe = PipeAt(core_.seat.kind, slot_);
    if (recorded_.gmBuffer >= 0) {
        Traffic& traffic = core_.traffic[recorded_.gmBuffer];
        if (pipe == Pipe::kMte2) ++traffic.readCommands;
        if (pipe == Pipe::kMte3 || pipe == Pipe::kFix) ++traffic.writeCommands;
        if (recorded_.pastL2 && pipe != Pipe::kS) {
            ++traffic.commandsPastL2;
            traffic.bytesPastL2 += recorded_.gmBytes;
        }
    }
    if (!core_.machine.options.trace) return;
    Record record;
    record.kind = KindOf(pipe);
    record.slot = static_cast<uint8_t>(slot_);
    record.scalar = recorded_.scalar;
    record.gmBuffer = recorded_.gmBuffer;
    record.seq = seq_;
    record.minimumCycles = recorded_.minimumCycles;
    record.repeats = recorded_.repeats;
    record.cyclesPerRepeat = recorded_.cyclesPerRepeat;
    record.gathersMask = recorded_.gathersMask;
    record.conflicts = recorded_.conflicts;
    record.gmBytes = recorded_.gmBytes;
    record.gmLine = recorded_.gmLine;
    record.cacheLine = recorded_.cacheLine;
    record.narrowRows = recorded_.narrowRows;
    record.restOfLine = recorded_.restOfLine;
    record.pastL2 = recorded_.pastL2;
    record.inWorkspace = recorded_.gmBuffer >= 0 && core_.machine.memory[recorded_.gmBuffer].workspace;
    core_.trace.records.push_back(record);
}

// ---- local memories ------------------------------------------------------------------------------------------------

const uint8_t* Instruction::Read(const LocalView& view, uint64_t offset, uint64_t bytes)
{
    const uint32_t begin = CheckSpan(view, offset, offset + bytes, "source") + static_cast<uint32_t>(offset);
    const uint32_t end = begin + static_cast<uint32_t>(bytes);
    for (uint32_t at = begin; at < end;) {
        const uint32_t part = std::min(kShadowBlockBytes - at % kShadowBlockBytes, end - at);
        ReadBlock(at, part);
        at += part;
    }
    return core_.local.data() + begin;
}

uint8_t* Instruction::Write(const LocalView& view, uint64_t offset, uint64_t bytes)
{
    const uint32_t begin = CheckSpan(view, offset, offset + bytes, "destination") + static_cast<uint32_t>(offset);
    const uint32_t end = begin + static_cast<uint32_t>(bytes);
    for (uint32_t at = begin; at < end;) {
        const uint32_t part = std::min(kShadowBlockBytes - at % kShadowBlockBytes, end - at);
        WriteBlock(at, part);
        at += part;
    }
    return core_.local.data() + begin;
}

void Instruction::WriteUndefined(const LocalView& view, uint64_t offset, uint64_t bytes)
{
    std::memset(Write(view, offset, bytes), 0xff, bytes);  // NaN in every floating-point type
    if (shadow_ != nullptr) {
        shadow_->ForgetContents(view.offset + static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes));
    }
}

uint32_t Instruction::CheckSpan(const LocalView& view, uint64_t first, uint64_t end, const char* operand)
{
    if (!EndsInside(first, end, view.size) || !InsideOneMemory(core_.seat.kind, view)) {
        core_.Fault(Check::kLocalBounds, where_, call_,
                    std::string(operand) + " bytes " + std::to_string(first) + ".." + std::to_string(end) +
                        " are not inside the local tensor of " + std::to_string(view.size) + " bytes at " +
                        core_.DescribeLocal(view.offset),
                    "make the tensor larger, or lower the count, repeats or strides");
    }
    CheckLive(view);
    return view.offset;
}

void Instruction::CheckLive(const LocalView& view)
{
    if (!core_.checking || view.buffer >= core_.localBuffers.size()) return;
    const LocalBuffer& buffer = core_.localBuffers[view.buffer];
    if (buffer.state == BufferState::kFree || buffer.generation != view.generation) {
        core_.Report(Check::kUseAfterFree, where_, call_,
                     "the tensor of " + buffer.name + " has been freed" +
                         (buffer.state == BufferState::kFree ? "" : " and its buffer handed out again"),
                     "use a tensor only until FreeTensor, TPipe::Reset or TPipe::Destroy");
    } else if (buffer.state == BufferState::kEnqueued) {
        core_.Report(Check::kQueue, where_, call_, "the tensor of " + buffer.name + " is used between EnQue and DeQue",
                     "use the tensor that DeQue returns");
    }
}

void Instruction::CheckReadOrder(uint32_t offset, uint32_t bytes)
{
    const ShadowBlock& block = shadow_->Block(offset);
    const uint32_t mask = LocalShadow::Mask(offset, bytes);
    if ((mask & ~block.initialised) != 0 && !core_.findings.CountAgain(Check::kUninitialised, where_)) {
        const uint32_t first = offset / kShadowBlockBytes * kShadowBlockBytes +
                               static_cast<uint32_t>(__builtin_ctz(mask & ~block.initialised));
        core_.Report(Check::kUninitialised, where_, call_,
                     std::string(call_) + " reads " + core_.DescribeLocal(first) + ", which nothing has written",
                     "write the bytes first (Duplicate, DataCopyPad with padding), or lower the count");
    }
    if ((mask & block.written) != 0 && block.writeSeq > finished_[block.writeSlot] && !Own(block)) {
        core_.ReportOrder(Check::kReadAfterWrite, *this, core_.DescribeLocal(offset), block.writeSlot, block.writeSeq);
    }
    for (uint32_t i = block.older; i != ShadowBlock::kNoOlder; i = shadow_->Older(i).next) {
        const LocalShadow::OlderWrite& older = shadow_->Older(i);
        const bool own = older.slot == slot_ && older.seq == seq_;
        if ((mask & older.bytes) == 0 || own || older.seq <= finished_[older.slot]) continue;
        core_.ReportOrder(Check::kReadAfterWrite, *this, core_.DescribeLocal(offset), older.slot, older.seq);
    }
}

void Instruction::CheckWriteOrder(uint32_t offset, uint32_t bytes)
{
    const ShadowBlock& block = shadow_->Block(offset);
    const uint32_t mask = LocalShadow::Mask(offset, bytes);
    const auto check = [&](Check kind, uint32_t touched, int slot, uint32_t seq) {
        if ((mask & touched) == 0 || seq <= finished_[slot]) return;
        core_.ReportOrder(kind, *this, core_.DescribeLocal(offset), slot, seq);
    };
    if (!Own(block)) check(Check::kWriteAfterWrite, block.written, block.writeSlot, block.writeSeq);
    for (uint32_t i = block.older; i != ShadowBlock::kNoOlder; i = shadow_->Older(i).next) {
        const LocalShadow::OlderWrite& older = shadow_->Older(i);
        if (older.slot == slot_ && older.seq == seq_) continue;
        check(Check::kWriteAfterWrite, older.bytes, older.slot, older.seq);
    }
    for (int slot = 0; slot < kSlots; ++slot) {
        if (slot == slot_) continue;  // a pipe is in order
        check(Check::kWriteAfterRead, block.read[slot], slot, block.readSeq[slot]);
    }
}

void Instruction::CheckAligned(const LocalView& view, uint32_t alignment, const char* operand)
{
    if (view.offset % alignment == 0) return;
    core_.Report(Check::kAlignment, where_, call_,
                 std::string(operand) + " at " + core_.DescribeLocal(view.offset) + " (address " +
                     std::to_string(view.offset - RegionAt(core_.seat.kind, view.offset).begin) +
                     " of its memory) is not aligned to " + std::to_string(alignment) + " bytes",
                 "start the tensor at a multiple of " + std::to_string(alignment) + " bytes");
}

// ---- global memory -------------------------------------------------------------------------------------------------

const uint8_t* Instruction::ReadGm(const void* address, uint64_t bytes)
{
    const uint64_t begin = NoteGm(address, bytes);
    const int buffer = recorded_.gmBuffer;
    if (slot_ == kScalar) {
        recorded_.cacheLine = static_cast<uint32_t>(begin / kCacheLineBytes);
        const bool hit = core_.GmReadByScalar(*this, buffer, begin, begin + bytes);
        recorded_.scalar = hit ? ScalarAccess::kGmHit : ScalarAccess::kGmMiss;
    } else {
        core_.GmReadByDma(*this, buffer, begin, begin + bytes);
    }
    return static_cast<const uint8_t*>(address);
}

const uint8_t* Instruction::CopyGm(const void* address, uint64_t bytes)
{
    const uint64_t begin = NoteGm(address, bytes);
    core_.GmReadByDma(*this, recorded_.gmBuffer, begin, begin + bytes);
    recorded_.gmBytes = bytes;
    recorded_.scalar = ScalarAccess::kGmCopy;
    return static_cast<const uint8_t*>(address);
}

void Instruction::PreloadGm(const void* address)
{
    const uint64_t begin = NoteGm(address, 1);
    recorded_.cacheLine = static_cast<uint32_t>(begin / kCacheLineBytes);
    const bool hit = core_.FillLine(*this, recorded_.gmBuffer, recorded_.cacheLine).hit;
    recorded_.scalar = hit ? ScalarAccess::kIssueOnly : ScalarAccess::kGmPreload;
}

uint64_t Instruction::NoteGm(const void* address, uint64_t bytes)
{
    const int buffer = core_.RequireGm(address, bytes, *this, "reads");
    const auto begin = static_cast<uint64_t>(static_cast<const uint8_t*>(address) - core_.machine.memory[buffer].base);
    if (recorded_.gmBuffer < 0) recorded_.gmLine = static_cast<uint32_t>(begin / kL2LineBytes);
    recorded_.gmBuffer = static_cast<int16_t>(buffer);
    return begin;
}

uint8_t* Instruction::WriteGm(void* address, uint64_t bytes)
{
    const int buffer = core_.RequireGm(address, bytes, *this, "writes");
    auto* first = static_cast<uint8_t*>(address);
    const auto begin = static_cast<uint64_t>(first - core_.machine.memory[buffer].base);
    recorded_.gmBuffer = static_cast<int16_t>(buffer);
    if (slot_ == kScalar) {
        const bool hit = core_.GmWriteByScalar(*this, buffer, begin, begin + bytes);
        recorded_.scalar = hit ? ScalarAccess::kGmHit : ScalarAccess::kGmMiss;
    } else {
        core_.GmWriteByDma(*this, buffer, begin, begin + bytes);
    }
    return first;
}

const uint8_t* Instruction::ReadGm(const GmView& view, uint64_t offset, uint64_t bytes)
{
    CheckGmView(view, offset, bytes, "reads");
    recorded_.pastL2 = view.pastL2;
    return ReadGm(static_cast<const uint8_t*>(view.base) + offset, bytes);
}

uint8_t* Instruction::WriteGm(const GmView& view, uint64_t offset, uint64_t bytes)
{
    CheckGmView(view, offset, bytes, "writes");
    recorded_.pastL2 = view.pastL2;
    return WriteGm(const_cast<uint8_t*>(static_cast<const uint8_t*>(view.base)) + offset, bytes);
}

void Instruction::ForgetGm(uint8_t* address, uint64_t bytes)
{
    GmBuffer& buffer = core_.machine.memory[core_.RequireGm(address, bytes, *this, "writes")];
    const auto begin = static_cast<uint64_t>(address - buffer.base);
    std::memset(address, 0xff, bytes);  // NaN in every floating-point type
    if (buffer.written) buffer.written->Clear(begin, begin + bytes);
}

void Instruction::CheckGmView(const GmView& view, uint64_t offset, uint64_t bytes, const char* access)
{
    if (view.bytes == GmView::kUnknownSize) return;
    if (bytes <= view.bytes && offset <= view.bytes - bytes) return;
    core_.Fault(Check::kGmBounds, where_, call_,
                std::string(call_) + " " + access + " bytes " + std::to_string(offset) + ".." +
                    std::to_string(offset + bytes) + " of a global tensor of " + std::to_string(view.bytes) +
                    " bytes at " + core_.machine.memory.Describe(view.base),
                "stay inside the size given to SetGlobalBuffer");
}

// ---- cost ----------------------------------------------------------------------------------------------------------

void Instruction::ComputeCost(double repeats, double cyclesPerRepeat)
{
    recorded_.repeats = static_cast<float>(repeats);
    recorded_.cyclesPerRepeat = static_cast<float>(cyclesPerRepeat);
}

void Instruction::GatherMaskCost(double repeats)
{
    recorded_.repeats = static_cast<float>(repeats);
    recorded_.gathersMask = true;
}

void Instruction::VectorConflicts(double extraCycles) { recorded_.conflicts = static_cast<float>(extraCycles); }

void Instruction::DmaCost(uint64_t gmBytes, double minimumCycles)
{
    recorded_.gmBytes = gmBytes;
    recorded_.minimumCycles = static_cast<float>(minimumCycles);
}

void Instruction::GmRows(uint64_t count, uint64_t bytes)
{
    if (bytes == 0 || bytes >= kL2LineBytes) return;
    recorded_.narrowRows = static_cast<uint32_t>(count);
    recorded_.restOfLine = static_cast<uint16_t>(kL2LineBytes - bytes);
}

void Instruction::ScalarCost(ScalarAccess access)
{
    if (recorded_.gmBuffer < 0) recorded_.scalar = access;
}

}  // namespace ascendc_host
