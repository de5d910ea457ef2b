#include "core.h"

#include <algorithm>

#include "core_impl.h"
#include "defects.h"
#include "text.h"

namespace ascendc_host {

namespace {

thread_local Core* currentCore = nullptr;

}  // namespace

void SetCurrentCore(Core* core) { currentCore = core; }

Core::Core(std::unique_ptr<CoreImpl> impl) : impl_(std::move(impl)) {}
Core::~Core() = default;
Core& Core::Current() { return *currentCore; }

CoreKind Core::Kind() const { return impl_->seat.kind; }

int64_t Core::BlockIdx() const
{
    const bool cube = impl_->seat.kind == CoreKind::kCube;
    if (cube) return impl_->seat.block;
    if (Planted(Defect::kBlockIndexAcrossBlocks)) return impl_->seat.subBlock * BlockNum() + impl_->seat.block;
    return impl_->seat.block * TaskRation() + impl_->seat.subBlock;
}

int64_t Core::SubBlockIdx() const { return impl_->seat.subBlock; }
int64_t Core::TaskRation() const
{
    return impl_->seat.kind == CoreKind::kCube ? 1 : impl_->machine.layout.Shape().vectors;
}

bool Core::Initialised(uint32_t offset) const
{
    return !impl_->checking || impl_->shadow.Block(offset).initialised != 0;
}

uint32_t Core::WrittenBytes(uint32_t offset, uint32_t bytes) const
{
    if (!impl_->checking) return bytes;
    uint32_t count = 0;
    while (count < bytes &&
           (impl_->shadow.Block(offset + count).initialised & LocalShadow::Mask(offset + count, 1)) != 0) {
        ++count;
    }
    return count;
}

int64_t Core::BlockNum() const { return impl_->machine.options.blocks; }
uint64_t Core::TilingKey() const { return impl_->machine.options.tilingKey; }
bool Core::AutoSync() const { return impl_->machine.options.autoSync; }
bool Core::Faulted() const { return impl_->faulted; }

void Core::DeclareKernelType(KernelType type, Where)
{
    if (!impl_->typeDeclaredForKey) impl_->kernelType = type;
    impl_->typeDeclared = true;
    impl_->shapeKnown = false;
}

void Core::DeclareKernelType(uint64_t tilingKey, KernelType type, Where)
{
    if (tilingKey != TilingKey()) return;
    impl_->kernelType = type;
    impl_->typeDeclared = true;
    impl_->typeDeclaredForKey = true;
    impl_->shapeKnown = false;
}

bool Core::Suppressed(Where where) const { return impl_->machine.suppression.Covers(where, nullptr); }

void Core::Report(Check check, Where where, const char* call, const std::string& what, const std::string& remedy)
{
    impl_->Report(check, where, call, what, remedy);
}

void Core::Fault(Check check, Where where, const char* call, const std::string& what, const std::string& remedy)
{
    impl_->Fault(check, where, call, what, remedy);
}

std::string Core::Describe(const LocalView& view, uint64_t offset) const
{
    return impl_->DescribeLocal(static_cast<uint32_t>(view.offset + offset));
}
std::string Core::DescribeLocal(uint32_t offset) const { return impl_->DescribeLocal(offset); }
std::string Core::DescribeGm(const void* address) const { return impl_->machine.memory.Describe(address); }
bool Core::InGm(const void* address, uint64_t bytes) const { return impl_->machine.memory.Find(address, bytes) >= 0; }

// ---- registers -----------------------------------------------------------------------------------------------------

void Core::WriteRegister(Register reg, uint64_t value)
{
    impl_->registers[static_cast<size_t>(reg)] = {value, impl_->issued[kCompute]};
}

uint64_t Core::ReadRegister(Register reg, Where where)
{
    Instruction instruction(Pipe::kS, "ReadRegister", where);
    const RegisterState& state = impl_->registers[static_cast<size_t>(reg)];
    const bool finished = impl_->FinishedBefore(kScalar)[kCompute] >= state.writtenBy;
    if (impl_->checking && !finished) {
        const Issue& writer = impl_->trace.IssueOf(kCompute, state.writtenBy);
        Report(Check::kStaleRegister, where, "ReadRegister",
               std::string("the scalar unit reads the result register of ") + writer.call + " at " +
                   Place(writer.where) + " before the vector pipe has finished it",
               "SetFlag and WaitFlag<HardEvent::V_S> between the two");
    }
    return state.value;
}

// ---- local memories ------------------------------------------------------------------------------------------------

uint8_t* Core::Local(uint32_t offset) { return impl_->local.data() + offset; }

Memory Core::MemoryOf(const LocalView& view) const { return RegionAt(impl_->seat.kind, view.offset).memory; }

uint32_t Core::AllocateLocal(Memory memory, uint32_t bytes, const char* name, Where where)
{
    impl_->RequireShape(where);
    const LocalRegion& region = RegionOf(memory);
    if (region.core != Kind()) {
        Fault(Check::kUnsupported, where, "InitBuffer",
              std::string(name) + " lies in the " + region.name + ", which a " + CoreKindName(Kind()) +
                  " core does not have",
              "initialise it under ASCEND_IS_AIC or ASCEND_IS_AIV");
    }
    uint32_t& used = impl_->used[static_cast<size_t>(memory)];
    const uint32_t rounded = (bytes + kShadowBlockBytes - 1) / kShadowBlockBytes * kShadowBlockBytes;
    if (rounded < bytes || rounded > region.usable - used) {
        Fault(Check::kLocalCapacity, where, "InitBuffer",
              std::string(name) + " needs " + std::to_string(bytes) + " bytes, but " + std::to_string(used) +
                  " of the " + std::to_string(region.usable) + " usable bytes of the " + region.name + " are taken",
              "allocate smaller buffers, or let buffers that are not needed at the same time share their bytes");
    }
    impl_->localBuffers.push_back({name, region.begin + used, rounded, 1, BufferState::kAllocated});
    used += rounded;
    return static_cast<uint32_t>(impl_->localBuffers.size() - 1);
}

LocalView Core::WholeBuffer(uint32_t buffer) const
{
    const LocalBuffer& whole = impl_->localBuffers[buffer];
    return {whole.offset, whole.bytes, buffer, whole.generation};
}

void Core::SetBufferState(uint32_t buffer, BufferState state)
{
    LocalBuffer& changed = impl_->localBuffers[buffer];
    if (changed.state == BufferState::kFree && state == BufferState::kAllocated) {
        ++changed.generation;
        if (impl_->checking) impl_->shadow.ForgetContents(changed.offset, changed.bytes);
    }
    changed.state = state;
}

BufferState Core::GetBufferState(uint32_t buffer) const { return impl_->localBuffers[buffer].state; }

void Core::ResetLocal()
{
    for (LocalBuffer& buffer : impl_->localBuffers) buffer.state = BufferState::kFree;
    impl_->shadow.ForgetContents(0, LocalBytes(impl_->seat.kind));
    impl_->used = {};
}

}  // namespace ascendc_host
