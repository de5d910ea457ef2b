// One call of a custom operator, as the generated aclnn functions make it: phase one checks the arguments and runs the
// operator's own shape inference and tiling, phase two runs its kernel on the host model.
#pragma once

#include <acl/acl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "descriptors.h"
#include "host.h"

namespace acl_emulator {

struct TensorDefinition {
    const char* name;
    bool required;
    bool anyStrides;  // IgnoreContiguous: the kernel gets the strided memory as it is
    std::vector<aclDataType> types;  // one for each combination that the operator supports
};

struct KernelDefinition {
    std::vector<aclDataType> types;  // of the first inputs
    const char* library;
};

struct OperatorDefinition {
    const char* aclnnName;
    const char* kernelName;
    std::vector<KernelDefinition> kernels;
    std::vector<TensorDefinition> inputs;
    std::vector<const char*> attributes;
    std::vector<TensorDefinition> outputs;
};

// A tensor argument in both phases. `descriptor` is the caller's, who has to keep it alive.
struct TensorArgument {
    const aclTensor* descriptor = nullptr;
    void* data = nullptr;  // of the first element
    uint64_t bytes = 0;    // that the kernel may touch
};

// A string or array argument, which the caller has to keep alive as well.
struct TextArgument {
    size_t attribute;
    const char* pointer;
    std::string value;
};

struct ArrayArgument {
    size_t attribute;
    const aclIntArray* pointer;
};

class OperatorCall {
public:
    explicit OperatorCall(const OperatorDefinition& definition);

    void Input(size_t index, const aclTensor* tensor) { inputs_[index].descriptor = tensor; }
    void Output(size_t index, const aclTensor* tensor) { outputs_[index].descriptor = tensor; }
    void Attribute(size_t index, int64_t value);
    void Attribute(size_t index, bool value) { Attribute(index, static_cast<int64_t>(value)); }
    void Attribute(size_t index, double value);
    void Attribute(size_t index, const char* text);
    void Attribute(size_t index, const aclIntArray* array);

    aclnnStatus Plan(uint64_t* workspaceSize, aclOpExecutor** executor);

private:
    aclnnStatus CheckTensors();
    aclnnStatus RunTiling();
    aclnnStatus CheckOutputs(const std::vector<CannTensor>& inferred) const;
    aclnnStatus CheckAlive() const;
    aclnnStatus CheckMemory(void* workspace, uint64_t bytes);
    aclOpExecutor::Work Launch(void* workspace) const;

    const OperatorDefinition& definition_;
    std::vector<TensorArgument> inputs_;
    std::vector<TensorArgument> outputs_;
    std::vector<CannAttribute> attributes_;
    std::vector<TextArgument> texts_;
    std::vector<ArrayArgument> arrays_;
    CannTiling tiling_{};
};

}  // namespace acl_emulator
