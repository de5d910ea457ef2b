#include "core.h"

#include "core_impl.h"
#include "text.h"

namespace ascendc_host {

namespace {

thread_local Core* currentCore = nullptr;

}  // namespace

void SetCurrentCore(Core* core) { currentCore = core; }

Core::Core(std::unique_ptr<CoreImpl> impl) : impl_(std::move(impl)) {}
Core::~Core() = default;
Core& Core::Current() { return *currentCore; }

int64_t Core::BlockIdx() const { return impl_->block; }
int64_t Core::BlockNum() const { return impl_->machine.options.blocks; }
uint64_t Core::TilingKey() const { return impl_->machine.options.tilingKey; }
bool Core::AutoSync() const { return impl_->machine.options.autoSync; }
bool Core::Faulted() const { return impl_->faulted; }

void Core::DeclareKernelType(KernelType type, Where) {
    if (!impl_->typeDeclaredForKey) impl_->kernelType = type;
    impl_->typeDeclared = true;
}

void Core::DeclareKernelType(uint64_t tilingKey, KernelType type, Where) {
    if (tilingKey != TilingKey()) return;
    impl_->kernelType = type;
    impl_->typeDeclared = true;
    impl_->typeDeclaredForKey = true;
}

bool Core::Suppressed(Where where) const { return impl_->machine.suppression.Covers(where, nullptr); }

void Core::Report(Check check, Where where, const char* call, const std::string& what, const std::string& remedy) {
    impl_->Report(check, where, call, what, remedy);
}

void Core::Fault(Check check, Where where, const char* call, const std::string& what, const std::string& remedy) {
    impl_->Fault(check, where, call, what, remedy);
}

std::string Core::Describe(const UbView& view, uint64_t offset) const {
    return impl_->DescribeUb(static_cast<uint32_t>(view.offset + offset));
}
std::string Core::DescribeUb(uint32_t ubOffset) const { return impl_->DescribeUb(ubOffset); }
std::string Core::DescribeGm(const void* address) const { return impl_->machine.memory.Describe(address); }

// ---- registers -----------------------------------------------------------------------------------------------------

void Core::WriteRegister(Register reg, uint64_t value) {
    impl_->registers[static_cast<size_t>(reg)] = {value, impl_->issued[SlotOf(Pipe::kV)]};
}

uint64_t Core::ReadRegister(Register reg, Where where) {
    Instruction instruction(Pipe::kS, "ReadRegister", where);
    const RegisterState& state = impl_->registers[static_cast<size_t>(reg)];
    const bool finished = impl_->FinishedBefore(kScalar)[SlotOf(Pipe::kV)] >= state.writtenBy;
    if (impl_->checking && !finished) {
        const Issue& writer = impl_->trace.IssueOf(SlotOf(Pipe::kV), state.writtenBy);
        Report(Check::kStaleRegister, where, "ReadRegister",
               std::string("the scalar unit reads the result register of ") + writer.call + " at " +
                   Place(writer.where) + " before the vector pipe has finished it",
               "SetFlag and WaitFlag<HardEvent::V_S> between the two");
    }
    return state.value;
}

// ---- the Unified Buffer --------------------------------------------------------------------------------------------

uint8_t* Core::Ub(uint32_t offset) { return impl_->ub.data() + offset; }

uint32_t Core::AllocateUb(uint32_t bytes, const char* name, Where where) {
    const uint32_t rounded = (bytes + kUbBlockBytes - 1) / kUbBlockBytes * kUbBlockBytes;
    if (rounded < bytes || rounded > kUbUserBytes - impl_->ubUsed) {
        Fault(Check::kUbCapacity, where, "InitBuffer",
              std::string(name) + " needs " + std::to_string(bytes) + " bytes, but " + std::to_string(impl_->ubUsed) +
                  " of the " + std::to_string(kUbUserBytes) + " usable bytes of the Unified Buffer are taken",
              "allocate smaller buffers, or let buffers that are not needed at the same time share their bytes");
    }
    impl_->ubBuffers.push_back({name, impl_->ubUsed, rounded, 1, BufferState::kAllocated});
    impl_->ubUsed += rounded;
    return static_cast<uint32_t>(impl_->ubBuffers.size() - 1);
}

UbView Core::WholeBuffer(uint32_t buffer) const {
    const UbBuffer& whole = impl_->ubBuffers[buffer];
    return {whole.offset, whole.bytes, buffer, whole.generation};
}

void Core::SetBufferState(uint32_t buffer, BufferState state) {
    UbBuffer& changed = impl_->ubBuffers[buffer];
    if (changed.state == BufferState::kFree && state == BufferState::kAllocated) {
        ++changed.generation;
        if (impl_->checking) impl_->shadow.ForgetContents(changed.offset, changed.bytes);
    }
    changed.state = state;
}

BufferState Core::GetBufferState(uint32_t buffer) const { return impl_->ubBuffers[buffer].state; }

void Core::ResetUb() {
    for (UbBuffer& buffer : impl_->ubBuffers) buffer.state = BufferState::kFree;
    impl_->shadow.ForgetContents(0, impl_->ubUsed);
    impl_->ubUsed = 0;
}

}  // namespace ascendc_host
