#include "descriptors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>

#include "descriptor_pool.h"
#include "error.h"
#include "stream.h"

namespace acl_emulator {
namespace {

std::atomic<int64_t> g_liveDescriptors{0};

// Executors between their two phases.
class LiveExecutors {
public:
    static LiveExecutors& Get()
    {
        static auto* executors = new LiveExecutors;
        return *executors;
    }

    void Add(aclOpExecutor* executor)
    {
        const std::lock_guard lock(mutex_);
        executors_.insert(executor);
    }

    // False for one that has ended, or that never was.
    bool Remove(aclOpExecutor* executor)
    {
        const std::lock_guard lock(mutex_);
        return executors_.erase(executor) == 1;
    }

    int64_t Count()
    {
        const std::lock_guard lock(mutex_);
        return static_cast<int64_t>(executors_.size());
    }

private:
    std::mutex mutex_;
    std::set<aclOpExecutor*> executors_;
};

template <typename T>
aclnnStatus Destroy(const T* descriptor, const char* function)
{
    if (descriptor == nullptr) return ACL_SUCCESS;
    if (!Pool<T>::Get().GiveBack(const_cast<T*>(descriptor))) {
        return Fail(kInvalidParameter, std::string(function) + ": the descriptor has been destroyed before");
    }
    --g_liveDescriptors;
    return ACL_SUCCESS;
}

int64_t Product(const std::vector<int64_t>& dims)
{
    return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& dims)
{
    std::vector<int64_t> strides(dims.size(), 1);
    for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
    return strides;
}

template <typename T>
T* New()
{
    ++g_liveDescriptors;
    return Pool<T>::Get().Take();
}

template <typename T, typename Element>
T* NewArray(const Element* values, uint64_t count)
{
    auto* array = New<T>();
    array->values.assign(values, values + count);
    return array;
}

template <typename T>
aclnnStatus DestroyList(const T* list, const char* function)
{
    if (list != nullptr && !list->destroyed) {
        for (const auto* element : list->values) Destroy(element, function);
    }
    return Destroy(list, function);
}

int64_t* NewCopy(const std::vector<int64_t>& values)
{
    auto* copy = new int64_t[values.size() + 1];
    std::memcpy(copy, values.data(), values.size() * sizeof(int64_t));
    return copy;
}

}  // namespace

size_t ItemSize(aclDataType type)
{
    switch (type) {
        case ACL_INT8:
        case ACL_UINT8:
        case ACL_BOOL:
        case ACL_FLOAT8_E4M3FN:
        case ACL_FLOAT8_E5M2:
            return 1;
        case ACL_FLOAT16:
        case ACL_BF16:
        case ACL_INT16:
        case ACL_UINT16:
            return 2;
        case ACL_FLOAT:
        case ACL_INT32:
        case ACL_UINT32:
            return 4;
        case ACL_COMPLEX128:
            return 16;
        default:
            return 8;
    }
}

aclOpExecutor* NewExecutor(std::function<aclOpExecutor::Work(void*, uint64_t, aclnnStatus&)> prepare)
{
    auto* executor = new aclOpExecutor{std::move(prepare)};
    LiveExecutors::Get().Add(executor);
    return executor;
}

aclnnStatus RunExecutor(const char* name, void* workspace, uint64_t bytes, aclOpExecutor* executor, aclrtStream stream)
{
    if (executor == nullptr) {
        return Fail(kNullPointer, std::string(name) +
                                      ": executor: expected what GetWorkspaceSize returned, got null; "
                                      "check the status of GetWorkspaceSize");
    }
    if (!LiveExecutors::Get().Remove(executor)) {
        return Fail(kInvalidParameter, std::string(name) +
                                           ": executor: expected one that has not been run yet, got "
                                           "one that has ended; call GetWorkspaceSize for each run");
    }
    aclnnStatus status = ACL_SUCCESS;
    aclOpExecutor::Work work = executor->prepare(workspace, bytes, status);
    delete executor;
    if (status != ACL_SUCCESS) return status;
    if (const aclError error = CheckStream(name, stream); error != ACL_SUCCESS) return kRuntimeError;
    Trace("%s on stream %p", name, stream);
    return Enqueue(stream, std::move(work)) == ACL_SUCCESS ? ACL_SUCCESS : kRuntimeError;
}

}  // namespace acl_emulator

using namespace acl_emulator;

int64_t aclTensor::Elements() const { return Product(dims); }

int64_t aclTensor::StorageElements() const { return Product(storageDims); }

bool aclTensor::Contiguous() const
{
    const std::vector<int64_t> expected = ContiguousStrides(dims);
    for (size_t i = 0; i < dims.size(); ++i) {
        if (dims[i] > 1 && strides[i] != expected[i]) return Elements() == 0;
    }
    return true;
}

extern "C" {

size_t aclDataTypeSize(aclDataType type) { return ItemSize(type); }

aclTensor* aclCreateTensor(const int64_t* dims, uint64_t rank, aclDataType type, const int64_t* strides, int64_t offset,
                           aclFormat format, const int64_t* storageDims, uint64_t storageRank, void* data)
{
    if (rank > Sizes::kCapacity || storageRank > Sizes::kCapacity) {
        Fail(kInvalidParameter, "aclCreateTensor: expected at most " + std::to_string(Sizes::kCapacity) +
                                    " dimensions, got " + std::to_string(std::max(rank, storageRank)));
        return nullptr;
    }
    auto* tensor = New<aclTensor>();
    tensor->dims.Assign(dims, rank);
    if (strides != nullptr) {
        tensor->strides.Assign(strides, rank);
    } else {
        tensor->strides.Assign(ContiguousStrides(tensor->dims).data(), rank);
    }
    tensor->storageDims.Assign(storageDims, storageRank);
    tensor->offset = offset;
    tensor->type = type;
    tensor->format = format;
    tensor->data = data;
    return tensor;
}

aclScalar* aclCreateScalar(void* value, aclDataType type)
{
    auto* scalar = New<aclScalar>();
    scalar->type = type;
    std::memcpy(scalar->value, value, ItemSize(type));
    return scalar;
}

aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) { return NewArray<aclIntArray>(values, count); }

aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) { return NewArray<aclBoolArray>(values, count); }

aclTensorList* aclCreateTensorList(const aclTensor* const* values, uint64_t count)
{
    return NewArray<aclTensorList>(values, count);
}

aclScalarList* aclCreateScalarList(const aclScalar* const* values, uint64_t count)
{
    return NewArray<aclScalarList>(values, count);
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) { return Destroy(tensor, "aclDestroyTensor"); }
aclnnStatus aclDestroyScalar(const aclScalar* scalar) { return Destroy(scalar, "aclDestroyScalar"); }
aclnnStatus aclDestroyIntArray(const aclIntArray* array) { return Destroy(array, "aclDestroyIntArray"); }
aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) { return Destroy(array, "aclDestroyBoolArray"); }
aclnnStatus aclDestroyTensorList(const aclTensorList* list) { return DestroyList(list, "aclDestroyTensorList"); }
aclnnStatus aclDestroyScalarList(const aclScalarList* list) { return DestroyList(list, "aclDestroyScalarList"); }

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor)
{
    if (!LiveExecutors::Get().Remove(executor)) {
        return Fail(kInvalidParameter, "aclDestroyAclOpExecutor: expected an executor that has not been run");
    }
    delete executor;
    return ACL_SUCCESS;
}

// For tests: what has been created and not yet destroyed or run.
int64_t acl_emulator_live_descriptors() { return g_liveDescriptors; }
int64_t acl_emulator_live_executors() { return LiveExecutors::Get().Count(); }

// The caller frees the array.
aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** dims, uint64_t* rank)
{
    *rank = tensor->dims.size();
    *dims = NewCopy(tensor->dims);
    return ACL_SUCCESS;
}

}  // extern "C"
