// What a program in C++ needs of aclnn: descriptors of tensors and arrays. The wheel of torch_npu has the other headers
// of ACL and not this one. Declared as CANN documents the functions; libopapi.so of the emulator defines them.
#pragma once

#include <acl/acl.h>

#include <cstdint>

typedef struct aclTensor aclTensor;
typedef struct aclIntArray aclIntArray;
typedef struct aclOpExecutor aclOpExecutor;
typedef int32_t aclnnStatus;

extern "C" {

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t* stride,
                           int64_t offset, aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum,
                           void* tensorData);
aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size);
aclnnStatus aclDestroyTensor(const aclTensor* tensor);
aclnnStatus aclDestroyIntArray(const aclIntArray* array);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor);

}  // extern "C"
