// The planted defects (ascendc/machine/defects.h) of what lies between torch_npu and the kernel.
#pragma once

#include <vector>

#include "ascendc/machine/defects.h"
#include "kernel_run.h"
#include "operator_call.h"

namespace acl_emulator {

// Whether the settings name this defect now; a name that there is not is an error of the launch.
bool Plants(ascendc_host::Defect defect);

// Puts the strides of contiguous tensors [a, b, c, d] in place of those that the attributes give for the inputs whose
// strides the kernel sees.
void ForgetStrides(const OperatorDefinition& definition, const std::vector<TensorArgument>& inputs,
                   std::vector<CannAttribute>& attributes);

// The launch as a planted defect leaves it.
aclOpExecutor::Work WithPlantedDefect(KernelRun run, const OperatorDefinition& definition,
                                      const std::vector<TensorArgument>& inputs,
                                      const std::vector<TensorArgument>& outputs);

}  // namespace acl_emulator
