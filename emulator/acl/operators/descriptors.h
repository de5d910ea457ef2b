// The descriptors of aclnn operators. A destroyed one is kept for a while, so that its later use can be told, and then
// becomes a new one.
#pragma once

#include <acl/acl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

using aclnnStatus = int32_t;

namespace acl_emulator {

struct Descriptor {
    std::atomic<bool> destroyed{false};
    Descriptor* next = nullptr;  // of those that were destroyed and not collected yet
};

// Sizes or strides of a tensor. Without memory of their own, so that a descriptor is one allocation.
class Sizes {
public:
    static constexpr size_t kCapacity = 16;

    void Assign(const int64_t* values, size_t count)
    {
        std::copy(values, values + count, values_);
        count_ = count;
    }

    size_t size() const { return count_; }
    int64_t operator[](size_t i) const { return values_[i]; }
    const int64_t* begin() const { return values_; }
    const int64_t* end() const { return values_ + count_; }
    operator std::vector<int64_t>() const { return {begin(), end()}; }

private:
    size_t count_ = 0;
    int64_t values_[kCapacity];
};

}  // namespace acl_emulator

struct aclTensor : acl_emulator::Descriptor {
    acl_emulator::Sizes dims;     // of the view
    acl_emulator::Sizes strides;  // in elements
    acl_emulator::Sizes storageDims;
    int64_t offset = 0;  // in elements
    aclDataType type = ACL_DT_UNDEFINED;
    aclFormat format = ACL_FORMAT_ND;
    void* data = nullptr;  // of the storage; the offset is not in it

    int64_t Elements() const;
    int64_t StorageElements() const;
    bool Contiguous() const;
};

struct aclScalar : acl_emulator::Descriptor {
    aclDataType type = ACL_DT_UNDEFINED;
    uint8_t value[16] = {};
};

struct aclIntArray : acl_emulator::Descriptor {
    std::vector<int64_t> values;
};

struct aclBoolArray : acl_emulator::Descriptor {
    std::vector<uint8_t> values;
};

struct aclTensorList : acl_emulator::Descriptor {
    std::vector<const aclTensor*> values;
};

struct aclScalarList : acl_emulator::Descriptor {
    std::vector<const aclScalar*> values;
};

// A call between its two phases. Phase two checks what the caller has to keep alive and gives the work for the
// stream; it fails by setting `status` and by a text for aclGetRecentErrMsg.
struct aclOpExecutor {
    using Work = std::function<std::string()>;
    std::function<Work(void* workspace, uint64_t bytes, aclnnStatus& status)> prepare;
};

namespace acl_emulator {

constexpr aclnnStatus kNullPointer = 161001;      // ACLNN_ERR_PARAM_NULLPTR
constexpr aclnnStatus kInvalidParameter = 161002; // ACLNN_ERR_PARAM_INVALID
constexpr aclnnStatus kRuntimeError = 361001;     // ACLNN_ERR_RUNTIME_ERROR
constexpr aclnnStatus kInferShapeError = 561001;  // ACLNN_ERR_INNER_INFERSHAPE_ERROR
constexpr aclnnStatus kTilingError = 561002;      // ACLNN_ERR_INNER_TILING_ERROR

size_t ItemSize(aclDataType type);

// Phase one of every operator ends with a new executor, which lives until it is run or destroyed.
aclOpExecutor* NewExecutor(std::function<aclOpExecutor::Work(void*, uint64_t, aclnnStatus&)> prepare);

// Phase two of every operator: puts the prepared work on the stream and ends the executor.
aclnnStatus RunExecutor(const char* name, void* workspace, uint64_t bytes, aclOpExecutor* executor, aclrtStream stream);

}  // namespace acl_emulator
