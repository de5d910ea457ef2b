// One core, vector or cube, as the API headers see it: memory, the instruction protocol, flags, barriers.
//
// The kernel runs once, in program order, on one host thread per core. Every API call becomes an Instruction that
// declares what it reads and writes before it computes; the core checks bounds, alignment, initialisation and the
// happens-before order of the pipes, and records the instruction for the timeline, which is worked out afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "clock.h"
#include "findings.h"
#include "local_shadow.h"
#include "types.h"

namespace ascendc_host {

// A piece of a local tensor: bytes [offset, offset + size) of the core's local memories, which lie behind one another
// (local_memory.h), inside one InitBuffer allocation.
// `generation` goes up each time a queue hands the buffer out again, so that a stale tensor is recognised.
struct LocalView {
    uint32_t offset = 0;
    uint32_t size = 0;
    uint32_t buffer = 0;
    uint32_t generation = 0;
};

// A global tensor: bytes [base, base + bytes). `bytes` is kUnknownSize after SetGlobalBuffer without a size.
struct GmView {
    static constexpr uint64_t kUnknownSize = ~0ull;
    const void* base = nullptr;
    uint64_t bytes = kUnknownSize;
    bool pastL2 = false;  // SetL2CacheHint with CACHE_MODE_DISABLE
};

enum class BufferState : uint8_t { kFree, kAllocated, kEnqueued };

// What Core::Fault throws and the launcher catches; the finding is reported before.
struct KernelFault {};

class CoreImpl;

class Core {
public:
    ~Core();

    static Core& Current();  // the core that runs on this thread

    // launch
    CoreKind Kind() const;
    int64_t BlockIdx() const;     // of vector cores in a mixed kernel: block * 2 + sub-block
    int64_t BlockNum() const;
    int64_t SubBlockIdx() const;  // 0 or 1 for the vector cores of a block
    int64_t TaskRation() const;   // of a vector core: how many the block has; 1 for a cube core
    uint64_t TilingKey() const;
    bool AutoSync() const;  // false: what the kernel's own flags and barriers order is all that is ordered
    void DeclareKernelType(KernelType type, Where where);                      // KERNEL_TASK_TYPE_DEFAULT
    void DeclareKernelType(uint64_t tilingKey, KernelType type, Where where);  // wins over the default for its key

    // local memories
    uint8_t* Local(uint32_t offset);
    Memory MemoryOf(const LocalView& view) const;
    bool Initialised(uint32_t offset) const;  // whether any byte of the 32-byte block has been written
    uint32_t WrittenBytes(uint32_t offset, uint32_t bytes) const;  // how many from `offset` on have been written
    // -> buffer id; throws KernelFault when full, or when this kind of core has no such memory
    uint32_t AllocateLocal(Memory memory, uint32_t bytes, const char* name, Where where);
    LocalView WholeBuffer(uint32_t buffer) const;
    // A new buffer is kAllocated. kFree -> kAllocated starts a new generation of unwritten bytes; kEnqueued ->
    // kAllocated (DeQue) keeps the contents.
    void SetBufferState(uint32_t buffer, BufferState state);
    BufferState GetBufferState(uint32_t buffer) const;
    void ResetLocal();  // TPipe::Reset / Destroy: gives all buffers back

    // flags and barriers
    void SetFlag(Pipe from, Pipe to, int eventId, Where where);
    void WaitFlag(Pipe from, Pipe to, int eventId, Where where);
    void Barrier(Pipe pipe, Where where);  // Pipe::kAll for PIPE_ALL
    void SyncAll(Where where);  // the hardware form
    int AllocateEventId(Pipe from, Pipe to, Where where);  // what a TQue takes; ids 0..7
    void ReleaseEventId(Pipe from, Pipe to, int eventId);
    // flags between the cores of a block; the set follows everything on `pipe`, the wait holds up the scalar unit
    void CrossCoreSet(int mode, Pipe pipe, int flagId, Where where);
    void CrossCoreWait(int flagId, Where where);

    // registers that a vector instruction writes and the scalar unit reads (GatherMask count, accumulator)
    void WriteRegister(Register reg, uint64_t value);       // inside a vector Instruction
    uint64_t ReadRegister(Register reg, Where where);       // needs a V -> S flag since the write

    // DataCacheCleanAndInvalid of the lines that [gm, gm + bytes) touches, or of every line of the scalar unit's cache
    void CacheClean(const void* gm, uint64_t bytes, Where where);
    void CacheCleanAll(Where where);

    // whether the sync site at `where` is switched off for a mutation run (SetFlag... ask this themselves)
    bool Suppressed(Where where) const;

    // After a fault the kernel is being left: flags and barriers do nothing any more, so that destructors may use
    // them. A destructor that can fault outside of that (a wait without set) has to be noexcept(false).
    bool Faulted() const;

    void Report(Check check, Where where, const char* call, const std::string& what, const std::string& remedy);
    [[noreturn]] void Fault(Check check, Where where, const char* call, const std::string& what,
                            const std::string& remedy);  // Report, then leave the kernel

    // "VECIN + 64" and "key + 4096", for messages
    std::string Describe(const LocalView& view, uint64_t offset) const;
    std::string DescribeLocal(uint32_t offset) const;
    std::string DescribeGm(const void* address) const;
    bool InGm(const void* address, uint64_t bytes) const;  // whether all of it lies in one argument

    CoreImpl& Impl() { return *impl_; }

private:
    friend class Device;
    explicit Core(std::unique_ptr<CoreImpl> impl);
    std::unique_ptr<CoreImpl> impl_;
};

// One instruction from issue to retirement:
//   construct -> Read/Write everything it touches (all checks happen here, before memory is touched) -> compute
//   through the pointers -> set the cost -> destructor retires it.
class Instruction {
public:
    Instruction(Pipe pipe, const char* call, Where where);
    ~Instruction();
    Instruction(const Instruction&) = delete;
    Instruction& operator=(const Instruction&) = delete;

    // `offset` is relative to the view. Bounds are those of the view. A view of a freed or enqueued buffer is
    // reported. Return the host address of the first byte.
    const uint8_t* Read(const LocalView& view, uint64_t offset, uint64_t bytes);
    uint8_t* Write(const LocalView& view, uint64_t offset, uint64_t bytes);

    // Checks bytes [first, end) of a strided access against the view once, so that the per-block calls below may be
    // cheap. Returns the UB offset of the view's first byte.
    uint32_t CheckSpan(const LocalView& view, uint64_t first, uint64_t end, const char* operand);
    void ReadBlock(uint32_t offset, uint32_t bytes);  // within one 32-byte block, bounds already checked
    void WriteBlock(uint32_t offset, uint32_t bytes);

    // Bytes that the instruction may overwrite with anything (padding, the rest of a block): a write for the order of
    // the pipes, after which they count as uninitialised.
    void WriteUndefined(const LocalView& view, uint64_t offset, uint64_t bytes);

    // Global memory: the access must lie inside one registered GM buffer and inside [base, base + size) of the tensor.
    const uint8_t* ReadGm(const void* address, uint64_t bytes);
    uint8_t* WriteGm(void* address, uint64_t bytes);
    const uint8_t* ReadGm(const GmView& view, uint64_t offset, uint64_t bytes);
    uint8_t* WriteGm(const GmView& view, uint64_t offset, uint64_t bytes);
    // By the scalar unit: a DMA that it waits for, and a line that is on its way into its data cache from now on.
    const uint8_t* CopyGm(const void* address, uint64_t bytes);
    void PreloadGm(const void* address);
    void ForgetGm(uint8_t* address,
                  uint64_t bytes);  // of its own write: anything may be there, and counts as unwritten

    void CheckAligned(const LocalView& view, uint32_t alignment, const char* operand);

    // cost for the timeline
    void ComputeCost(double repeats, double cyclesPerRepeat);  // V, M, MTE1
    void GatherMaskCost(double repeats);
    void VectorConflicts(double extraCycles);  // bank conflicts: counted apart, in the pessimistic time only
    void DmaCost(uint64_t gmBytes, double minimumCycles = 0);  // MTE2, MTE3, FIX
    // Of a read: pieces of `bytes` bytes that do not follow each other; counts those shorter than a line of the L2.
    void GmRows(uint64_t count, uint64_t bytes);
    void ScalarCost(ScalarAccess access);  // for an access to GM the core itself decides between hit and miss

private:
    friend class CoreImpl;

    uint64_t NoteGm(const void* address, uint64_t bytes);  // of a read: where it begins in its argument
    void CheckLive(const LocalView& view);
    void CheckReadOrder(uint32_t offset, uint32_t bytes);  // the slow paths of ReadBlock and WriteBlock
    void CheckWriteOrder(uint32_t offset, uint32_t bytes);
    void CheckGmView(const GmView& view, uint64_t offset, uint64_t bytes, const char* access);
    bool Own(const ShadowBlock& block) const { return block.writeSeq == seq_ && block.writeSlot == slot_; }

    CoreImpl& core_;
    LocalShadow* shadow_;  // null when checks are off
    Clock finished_;  // what is known to have finished when this instruction starts
    Clock drained_;  // the same, and everything on its own pipe: a pipe reads in order before it writes
    int slot_;
    uint32_t seq_;
    const char* call_;
    Where where_;

    struct Recorded {
        float repeats = 0;
        float cyclesPerRepeat = 0;
        bool gathersMask = false;
        float conflicts = 0;
        float minimumCycles = 0;
        uint64_t gmBytes = 0;
        uint32_t gmLine = 0;
        uint32_t cacheLine = 0;
        uint32_t narrowRows = 0;
        uint16_t restOfLine = 0;
        int16_t gmBuffer = -1;
        bool pastL2 = false;
        ScalarAccess scalar = ScalarAccess::kIssueOnly;
    } recorded_;
};

inline void Instruction::ReadBlock(uint32_t offset, uint32_t bytes)
{
    if (shadow_ == nullptr) return;
    ShadowBlock& block = shadow_->Block(offset);
    const uint32_t mask = LocalShadow::Mask(offset, bytes);
    const bool unwritten = (mask & ~block.initialised) != 0;
    const bool unordered = (mask & block.written) != 0 && block.writeSeq > finished_[block.writeSlot];
    if (unwritten || unordered || block.older != ShadowBlock::kNoOlder) CheckReadOrder(offset, bytes);
    block.read[slot_] |= mask;
    block.readSeq[slot_] = seq_;
}

inline void Instruction::WriteBlock(uint32_t offset, uint32_t bytes)
{
    if (shadow_ == nullptr) return;
    ShadowBlock& block = shadow_->Block(offset);
    const uint32_t mask = LocalShadow::Mask(offset, bytes);
    bool unordered = (mask & block.written) != 0 && block.writeSeq > finished_[block.writeSlot];
    for (int slot = 0; slot < kSlots; ++slot) {
        unordered |= (mask & block.read[slot]) != 0 && block.readSeq[slot] > drained_[slot];
    }
    if (unordered || block.older != ShadowBlock::kNoOlder) CheckWriteOrder(offset, bytes);
    for (int slot = 0; slot < kSlots; ++slot) block.read[slot] &= ~mask;
    if (Own(block)) {
        block.written |= mask;
    } else {
        if ((block.written & ~mask) != 0) shadow_->KeepOlder(block, mask);
        block.written = mask;
        block.writeSeq = seq_;
        block.writeSlot = slot_;
    }
    if (block.older != ShadowBlock::kNoOlder) shadow_->TrimOlder(block, mask);
    block.initialised |= mask;
}

}  // namespace ascendc_host
