// Checks of one tensor argument, with messages that name it.
#pragma once

#include <string>
#include <vector>

#include "operator_call.h"

namespace acl_emulator {

// Which combinations of types of the operator's definition the arguments so far allow.
using Combinations = std::vector<bool>;

std::string ShapeText(const std::vector<int64_t>& dims);

// Presence, type, format and strides; finds the memory of the tensor.
aclnnStatus CheckTensor(const TensorDefinition& definition, TensorArgument& argument, Combinations& combinations);

// The whole range is in one allocation of the device.
aclnnStatus CheckDevice(const char* name, const void* data, uint64_t bytes, int device);

}  // namespace acl_emulator
