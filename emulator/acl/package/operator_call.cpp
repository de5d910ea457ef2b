#include "operator_call.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "argument_checks.h"
#include "device.h"
#include "error.h"
#include "kernel_run.h"
#include "memory.h"
#include "runtime_defects.h"
#include "settings.h"

namespace acl_emulator {
namespace {

using ascendc_host::Defect;
using ascendc_host::Role;

constexpr uint32_t kUbBytes = 192 * 1024;
constexpr uint64_t kL2Bytes = 192 * 1024 * 1024;
constexpr uint32_t kSystemWorkspace = 16 << 20;  // the part of every workspace that belongs to CANN

std::vector<CannTensor> Describe(const std::vector<TensorArgument>& arguments)
{
    std::vector<CannTensor> tensors(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
        const aclTensor* tensor = arguments[i].descriptor;
        if (tensor == nullptr) continue;
        tensors[i].present = 1;
        tensors[i].type = tensor->type;
        tensors[i].rank = static_cast<uint32_t>(tensor->dims.size());
        std::copy(tensor->dims.begin(), tensor->dims.end(), tensors[i].dims);
    }
    return tensors;
}

// Reads memory that may have been freed and unmapped.
bool SameBytes(const char* pointer, const std::string& expected)
{
    const size_t bytes = expected.size() + 1;
    std::vector<char> now(bytes);
    const iovec local = {now.data(), bytes};
    const iovec remote = {const_cast<char*>(pointer), bytes};
    const ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (got < 0 && errno != EFAULT) return true;  // the system does not allow the call, as in some containers
    return got == static_cast<ssize_t>(bytes) && std::equal(now.begin(), now.end(), expected.c_str());
}

}  // namespace

OperatorCall::OperatorCall(const OperatorDefinition& definition)
    : definition_(definition),
      inputs_(definition.inputs.size()),
      outputs_(definition.outputs.size()),
      attributes_(definition.attributes.size())
{}

void OperatorCall::Attribute(size_t index, int64_t value)
{
    attributes_[index].given = 1;
    attributes_[index].integer = value;
}

void OperatorCall::Attribute(size_t index, double value)
{
    attributes_[index].given = 1;
    attributes_[index].number = value;
}

void OperatorCall::Attribute(size_t index, const char* text)
{
    if (text == nullptr) return;
    attributes_[index].given = 1;
    attributes_[index].text = text;
    texts_.push_back({index, text, text});
}

void OperatorCall::Attribute(size_t index, const aclIntArray* array)
{
    if (array == nullptr) return;
    attributes_[index].given = 1;
    attributes_[index].list = array->values.data();
    attributes_[index].count = array->values.size();
    arrays_.push_back({index, array});
}

aclnnStatus OperatorCall::Plan(uint64_t* workspaceSize, aclOpExecutor** executor)
{
    if (workspaceSize == nullptr || executor == nullptr) {
        return Fail(kNullPointer, "workspaceSize, executor: expected the addresses of two variables, got null");
    }
    if (const aclnnStatus status = CheckAlive(); status != ACL_SUCCESS) return status;
    if (const aclnnStatus status = CheckTensors(); status != ACL_SUCCESS) return status;
    if (const aclnnStatus status = RunTiling(); status != ACL_SUCCESS) return status;
    *workspaceSize = tiling_.workspaceBytes;
    auto call = std::make_shared<OperatorCall>(std::move(*this));
    *executor = NewExecutor([call](void* workspace, uint64_t bytes, aclnnStatus& status) -> aclOpExecutor::Work {
        status = call->CheckAlive();
        if (status == ACL_SUCCESS) status = call->CheckMemory(workspace, bytes);
        return status == ACL_SUCCESS ? call->Launch(workspace) : nullptr;
    });
    return ACL_SUCCESS;
}

aclnnStatus OperatorCall::CheckTensors()
{
    Combinations combinations(definition_.inputs[0].types.size(), true);
    for (size_t i = 0; i < inputs_.size(); ++i) {
        const aclnnStatus status = CheckTensor(definition_.inputs[i], inputs_[i], combinations);
        if (status != ACL_SUCCESS) return status;
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
        const aclnnStatus status = CheckTensor(definition_.outputs[i], outputs_[i], combinations);
        if (status != ACL_SUCCESS) return status;
    }
    return ACL_SUCCESS;
}

aclnnStatus OperatorCall::RunTiling()
{
    const std::vector<CannTensor> inputs = Describe(inputs_);
    const std::vector<CannTensor> outputs = Describe(outputs_);
    std::vector<CannTensor> inferred(outputs_.size());
    if (CannInferOutputs(inputs.data(), attributes_.data(), inferred.data()) != 0) {
        return Fail(kInferShapeError, CannErrorMessage());
    }
    if (const aclnnStatus status = CheckOutputs(inferred); status != ACL_SUCCESS) return status;
    if (Plants(Defect::kStridesIgnored)) ForgetStrides(definition_, inputs_, attributes_);
    const Settings& settings = GetSettings();
    const CannPlatform platform = {settings.cubeCores, settings.vectorCores, kUbBytes, kL2Bytes, kSystemWorkspace};
    if (CannRunTiling(inputs.data(), attributes_.data(), outputs.data(), &platform, &tiling_) != 0) {
        return Fail(kTilingError, CannErrorMessage());
    }
    return ACL_SUCCESS;
}

aclnnStatus OperatorCall::CheckOutputs(const std::vector<CannTensor>& inferred) const
{
    for (size_t i = 0; i < outputs_.size(); ++i) {
        const std::vector<int64_t> expected(inferred[i].dims, inferred[i].dims + inferred[i].rank);
        const std::vector<int64_t>& dims = outputs_[i].descriptor->dims;
        if (dims != expected) {
            return Fail(kInvalidParameter, std::string(definition_.outputs[i].name) + ": expected the shape " +
                                               ShapeText(expected) + " that shape inference gives, got " +
                                               ShapeText(dims));
        }
    }
    return ACL_SUCCESS;
}

aclnnStatus OperatorCall::CheckAlive() const
{
    const auto gone = [](const std::string& name, const char* what) {
        return Fail(kInvalidParameter,
                    name + ": its " + what + " has been destroyed; keep it until the second phase has returned");
    };
    for (size_t i = 0; i < inputs_.size(); ++i) {
        const aclTensor* tensor = inputs_[i].descriptor;
        if (tensor != nullptr && tensor->destroyed) return gone(definition_.inputs[i].name, "aclTensor");
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
        const aclTensor* tensor = outputs_[i].descriptor;
        if (tensor != nullptr && tensor->destroyed) return gone(definition_.outputs[i].name, "aclTensor");
    }
    for (const ArrayArgument& array : arrays_) {
        if (array.pointer->destroyed) return gone(definition_.attributes[array.attribute], "aclIntArray");
    }
    for (const TextArgument& text : texts_) {
        if (!SameBytes(text.pointer, text.value)) return gone(definition_.attributes[text.attribute], "string");
    }
    return ACL_SUCCESS;
}

aclnnStatus OperatorCall::CheckMemory(void* workspace, uint64_t bytes)
{
    const int device = CurrentDeviceOrFirst();
    if (bytes < tiling_.workspaceBytes) {
        return Fail(kInvalidParameter, "workspace: expected the " + std::to_string(tiling_.workspaceBytes) +
                                           " bytes that the first phase asked for, got " + std::to_string(bytes));
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
        const aclnnStatus status = CheckDevice(definition_.inputs[i].name, inputs_[i].data, inputs_[i].bytes, device);
        if (status != ACL_SUCCESS) return status;
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
        const aclnnStatus status =
            CheckDevice(definition_.outputs[i].name, outputs_[i].data, outputs_[i].bytes, device);
        if (status != ACL_SUCCESS) return status;
    }
    return CheckDevice("workspace", workspace, tiling_.workspaceBytes, device);
}

// The task keeps addresses only: the caller may destroy its descriptors when the second phase has returned.
aclOpExecutor::Work OperatorCall::Launch(void* workspace) const
{
    KernelRun run;
    run.name = definition_.aclnnName;
    for (const KernelDefinition& kernel : definition_.kernels) {
        const auto same = [](aclDataType type, const TensorArgument& input) { return type == input.descriptor->type; };
        if (std::equal(kernel.types.begin(), kernel.types.end(), inputs_.begin(), same)) run.library = kernel.library;
    }
    run.entry = definition_.kernelName;
    for (size_t i = 0; i < inputs_.size(); ++i) {
        run.Add(definition_.inputs[i].name, inputs_[i].data, inputs_[i].bytes, Role::kIn);
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
        run.Add(definition_.outputs[i].name, outputs_[i].data, outputs_[i].bytes, Role::kOut);
    }
    char* const own = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + kSystemWorkspace;
    const uint64_t ownBytes = tiling_.workspaceBytes > kSystemWorkspace ? tiling_.workspaceBytes - kSystemWorkspace : 0;
    run.Add("workspace", ownBytes > 0 ? own : nullptr, ownBytes, Role::kWorkspace);
    run.tiling.assign(tiling_.data, tiling_.data + tiling_.dataBytes);
    run.blocks = tiling_.blockDim;
    run.tilingKey = tiling_.key;
    return WithPlantedDefect(std::move(run), definition_, inputs_, outputs_);
}

}  // namespace acl_emulator
