// aclnnInplaceCopy and aclnnCast: what torch_npu's copies between strides and dtypes need.
#include <cstring>
#include <string>
#include <vector>

#include "descriptors.h"
#include "element.h"
#include "error.h"

using namespace acl_emulator;

namespace {

// What a copy reads or writes, without the descriptor.
struct View {
    std::vector<int64_t> dims;
    std::vector<int64_t> strides;
    int64_t offset;
    aclDataType type;
    void* data;
};

View ViewOf(const aclTensor& tensor) { return {tensor.dims, tensor.strides, tensor.offset, tensor.type, tensor.data}; }

// The source of a copy as it looks in the shape of the target; false if it cannot be broadcast to it.
bool Broadcast(View& source, const std::vector<int64_t>& dims)
{
    if (source.dims.size() > dims.size()) return false;
    const size_t missing = dims.size() - source.dims.size();
    std::vector<int64_t> strides(dims.size(), 0);
    for (size_t i = missing; i < dims.size(); ++i) {
        const int64_t size = source.dims[i - missing];
        if (size != dims[i] && size != 1) return false;
        strides[i] = size == 1 ? 0 : source.strides[i - missing];
    }
    source.dims = dims;
    source.strides = strides;
    return true;
}

int64_t Position(const View& view, int64_t element)
{
    int64_t position = view.offset;
    for (size_t d = view.dims.size(); d-- > 0;) {
        position += element % view.dims[d] * view.strides[d];
        element /= view.dims[d];
    }
    return position;
}

void Copy(const View& target, const View& source)
{
    int64_t elements = 1;
    for (const int64_t size : target.dims) elements *= size;
    const size_t bytes = ItemSize(target.type);
    for (int64_t i = 0; i < elements; ++i) {
        const int64_t to = Position(target, i);
        const int64_t from = Position(source, i);
        if (target.type == source.type) {
            std::memcpy(static_cast<char*>(target.data) + to * bytes,
                        static_cast<const char*>(source.data) + from * bytes, bytes);
        } else {
            Store(target.data, target.type, to, Load(source.data, source.type, from));
        }
    }
}

aclnnStatus PlanCopy(const char* name, const aclTensor* target, const aclTensor* source, uint64_t* workspaceSize,
                     aclOpExecutor** executor)
{
    if (target == nullptr || source == nullptr) {
        return Fail(kNullPointer, std::string(name) + ": expected two tensors, got null");
    }
    const View to = ViewOf(*target);
    View from = ViewOf(*source);
    if (!Broadcast(from, to.dims)) {
        return Fail(kInvalidParameter, std::string(name) + ": expected a source that broadcasts to the target");
    }
    if (to.type != from.type && !(IsNumber(to.type) && IsNumber(from.type))) {
        return Fail(kInvalidParameter, std::string(name) + ": the emulator cannot convert aclDataType " +
                                           std::to_string(from.type) + " to " + std::to_string(to.type));
    }
    *workspaceSize = 0;
    *executor = NewExecutor([=](void*, uint64_t, aclnnStatus&) -> aclOpExecutor::Work {
        return [=] {
            Copy(to, from);
            return std::string();
        };
    });
    return ACL_SUCCESS;
}

}  // namespace

extern "C" {

aclnnStatus aclnnInplaceCopyGetWorkspaceSize(aclTensor* self, const aclTensor* source, uint64_t* workspaceSize,
                                             aclOpExecutor** executor)
{
    return PlanCopy("aclnnInplaceCopy", self, source, workspaceSize, executor);
}

aclnnStatus aclnnInplaceCopy(void* workspace, uint64_t bytes, aclOpExecutor* executor, aclrtStream stream)
{
    return RunExecutor("aclnnInplaceCopy", workspace, bytes, executor, stream);
}

aclnnStatus aclnnCastGetWorkspaceSize(const aclTensor* self, aclDataType, aclTensor* out, uint64_t* workspaceSize,
                                      aclOpExecutor** executor)
{
    return PlanCopy("aclnnCast", out, self, workspaceSize, executor);
}

aclnnStatus aclnnCast(void* workspace, uint64_t bytes, aclOpExecutor* executor, aclrtStream stream)
{
    return RunExecutor("aclnnCast", workspace, bytes, executor, stream);
}

}  // extern "C"
