#include "argument_checks.h"

#include <algorithm>
#include <array>

#include "error.h"
#include "memory.h"

namespace acl_emulator {
namespace {

std::string TypeText(aclDataType type)
{
    switch (type) {
        case ACL_FLOAT:
            return "float32";
        case ACL_FLOAT16:
            return "float16";
        case ACL_BF16:
            return "bfloat16";
        case ACL_INT8:
            return "int8";
        case ACL_INT32:
            return "int32";
        case ACL_INT64:
            return "int64";
        case ACL_DOUBLE:
            return "float64";
        default:
            return "aclDataType " + std::to_string(type);
    }
}

// Keeps the combinations that have the argument's type; fails if there is none.
aclnnStatus Narrow(const TensorDefinition& definition, aclDataType type, Combinations& combinations)
{
    Combinations narrowed = combinations;
    std::string allowed;
    for (size_t i = 0; i < combinations.size(); ++i) {
        if (!combinations[i]) continue;
        narrowed[i] = definition.types[i] == type;
        const std::string text = TypeText(definition.types[i]);
        if (allowed.find(text) == std::string::npos) allowed += allowed.empty() ? text : " or " + text;
    }
    if (std::none_of(narrowed.begin(), narrowed.end(), [](bool possible) { return possible; })) {
        return Fail(kInvalidParameter, std::string(definition.name) + ": expected " + allowed +
                                           " beside the arguments before it, got " + TypeText(type));
    }
    combinations = narrowed;
    return ACL_SUCCESS;
}

// Formats that hold elements in the order of their strides.
bool IsBaseFormat(aclFormat format)
{
    constexpr std::array<int, 7> kBase = {
        ACL_FORMAT_UNDEFINED, ACL_FORMAT_NCHW, ACL_FORMAT_NHWC, ACL_FORMAT_ND, 27, ACL_FORMAT_NCDHW, 47};
    return std::find(kBase.begin(), kBase.end(), static_cast<int>(format)) != kBase.end();
}

// Bytes from the first element to the end of the storage, or of the tensor if it is contiguous.
uint64_t ReachableBytes(const aclTensor& tensor, bool anyStrides)
{
    if (tensor.Elements() == 0) return 0;
    const int64_t elements = anyStrides ? tensor.StorageElements() - tensor.offset : tensor.Elements();
    return static_cast<uint64_t>(std::max<int64_t>(elements, 0)) * ItemSize(tensor.type);
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& dims)
{
    std::string text;
    for (const int64_t size : dims) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return "[" + text + "]";
}

aclnnStatus CheckTensor(const TensorDefinition& definition, TensorArgument& argument, Combinations& combinations)
{
    const aclTensor* tensor = argument.descriptor;
    const std::string name = definition.name;
    if (tensor == nullptr) {
        return definition.required ? Fail(kNullPointer, name + ": expected a tensor, got null") : ACL_SUCCESS;
    }
    if (tensor->dims.size() > kCannMaxRank) {
        return Fail(kInvalidParameter, name + ": expected at most " + std::to_string(kCannMaxRank) +
                                           " dimensions, got " + ShapeText(tensor->dims));
    }
    const aclnnStatus status = Narrow(definition, tensor->type, combinations);
    if (status != ACL_SUCCESS) return status;
    if (!IsBaseFormat(tensor->format)) {
        return Fail(kInvalidParameter, name + ": expected the format ND, got the private format " +
                                           std::to_string(tensor->format) + "; use npu_format_cast");
    }
    if (!definition.anyStrides && !tensor->Contiguous()) {
        return Fail(kInvalidParameter, name + ": expected a contiguous tensor, got the strides " +
                                           ShapeText(tensor->strides) + " for " + ShapeText(tensor->dims) +
                                           "; CANN would copy it, the emulator does not");
    }
    argument.bytes = ReachableBytes(*tensor, definition.anyStrides);
    argument.data = argument.bytes == 0
                        ? nullptr
                        : static_cast<char*>(tensor->data) + tensor->offset * int64_t(ItemSize(tensor->type));
    return ACL_SUCCESS;
}

aclnnStatus CheckDevice(const char* name, const void* data, uint64_t bytes, int device)
{
    if (bytes == 0 || DeviceMemory::Get().DeviceOf(data, bytes) == device) return ACL_SUCCESS;
    return Fail(kInvalidParameter, std::string(name) + ": expected " + std::to_string(bytes) +
                                       " bytes of one allocation on device " + std::to_string(device) +
                                       ", got other memory");
}

}  // namespace acl_emulator
