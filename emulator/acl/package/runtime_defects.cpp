#include "runtime_defects.h"

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>

#include "settings.h"

namespace acl_emulator {
namespace {

using ascendc_host::Defect;

bool IsInteger(const aclTensor* tensor)
{
    return tensor != nullptr && (tensor->type == ACL_INT32 || tensor->type == ACL_INT64);
}

// The launch with copies of the integer inputs as they are now.
aclOpExecutor::Work WithCopiedIntegers(KernelRun run, const std::vector<TensorArgument>& inputs)
{
    auto copies = std::make_shared<std::vector<std::vector<uint8_t>>>(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
        if (!IsInteger(inputs[i].descriptor) || inputs[i].bytes == 0) continue;
        const auto* data = static_cast<const uint8_t*>(inputs[i].data);
        (*copies)[i].assign(data, data + inputs[i].bytes);
        run.arguments[i].data = (*copies)[i].data();
    }
    return [run, copies] { return run(); };
}

}  // namespace

bool Plants(Defect defect)
{
    try {
        return ascendc_host::DefectOf(PlantedDefect()) == defect;
    } catch (const std::invalid_argument&) {
        return false;
    }
}

void ForgetStrides(const OperatorDefinition& definition, const std::vector<TensorArgument>& inputs,
                   std::vector<CannAttribute>& attributes)
{
    static thread_local std::vector<std::array<int64_t, 3>> strides;
    strides.clear();
    strides.reserve(inputs.size());  // so that the addresses stay
    size_t attribute = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
        const aclTensor* tensor = inputs[i].descriptor;
        if (!definition.inputs[i].anyStrides || tensor == nullptr || tensor->dims.size() != 4) continue;
        const std::vector<int64_t>& dims = tensor->dims;
        strides.push_back({dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3]});
        while (attribute < attributes.size() && attributes[attribute].count != strides.back().size()) ++attribute;
        if (attribute < attributes.size()) attributes[attribute++].list = strides.back().data();
    }
}

aclOpExecutor::Work WithPlantedDefect(KernelRun run, const OperatorDefinition& definition,
                                      const std::vector<TensorArgument>& inputs,
                                      const std::vector<TensorArgument>& outputs)
{
    const bool empty =
        std::any_of(outputs.begin(), outputs.end(), [](const TensorArgument& output) { return output.bytes == 0; });
    if ((Plants(Defect::kEmptyOutputSkipsLaunch) && empty) ||
        (Plants(Defect::kFirstKeyDoesNotStart) && run.tilingKey == 1)) {
        return [] { return std::string(); };
    }
    if (Plants(Defect::kFirstKernelForAllTypes)) run.library = definition.kernels.front().library;
    if (Plants(Defect::kReplayWithCapturedLengths)) return WithCopiedIntegers(std::move(run), inputs);
    return run;
}

}  // namespace acl_emulator
