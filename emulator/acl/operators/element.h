// Elements of tensors as numbers.
#pragma once

#include <acl/acl.h>

#include <cstdint>

namespace acl_emulator {

// Whether Load and Store know the type; others can only be copied to the same type.
bool IsNumber(aclDataType type);

double Load(const void* data, aclDataType type, int64_t index);
void Store(void* data, aclDataType type, int64_t index, double value);

}  // namespace acl_emulator
