// Reads the arguments out of a CANN context.
#pragma once

#include "operator_arguments.h"
#include "register/op_def_registry.h"

namespace toptheta {

inline ElementType ElementTypeOf(ge::DataType type)
{
    switch (type) {
        case ge::DT_FLOAT16:
            return ElementType::kFloat16;
        case ge::DT_BF16:
            return ElementType::kBfloat16;
        case ge::DT_FLOAT:
            return ElementType::kFloat32;
        case ge::DT_INT8:
            return ElementType::kInt8;
        case ge::DT_INT32:
            return ElementType::kInt32;
        case ge::DT_INT64:
            return ElementType::kInt64;
        default:
            return ElementType::kOther;
    }
}

inline std::vector<int64_t> DimsOf(const gert::Shape& shape)
{
    std::vector<int64_t> dims(shape.GetDimNum());
    for (size_t i = 0; i < dims.size(); i++) {
        dims[i] = shape.GetDim(i);
    }
    return dims;
}

// An attribute that the context does not have keeps its default.
template <typename T, typename Source>
inline void ReadAttribute(const Source* source, T& target)
{
    if (source != nullptr) {
        target = *source;
    }
}

inline void ReadText(const char* source, std::string& target)
{
    if (source != nullptr) {
        target = source;
    }
}

inline void ReadList(const gert::TypedContinuousVector<int64_t>* source, std::vector<int64_t>& target)
{
    if (source != nullptr) {
        target.assign(source->GetData(), source->GetData() + source->GetSize());
    }
}

inline void ReadAttributes(const gert::RuntimeAttrs& attributes, Arguments& arguments)
{
    ReadAttribute(attributes.GetInt(AttributeIndex::kNumHeads), arguments.numHeads);
    ReadAttribute(attributes.GetInt(AttributeIndex::kNumKeyValueHeads), arguments.numKeyValueHeads);
    ReadAttribute(attributes.GetFloat(AttributeIndex::kScaleValue), arguments.scaleValue);
    ReadText(attributes.GetStr(AttributeIndex::kInputLayout), arguments.inputLayout);
    ReadAttribute(attributes.GetInt(AttributeIndex::kKeyAntiquantMode), arguments.keyAntiquantMode);
    ReadAttribute(attributes.GetInt(AttributeIndex::kValueAntiquantMode), arguments.valueAntiquantMode);
    ReadText(attributes.GetStr(AttributeIndex::kPlacement), arguments.placement);
    ReadText(attributes.GetStr(AttributeIndex::kSdc), arguments.sdc);
    ReadAttribute(attributes.GetFloat(AttributeIndex::kSdcGamma), arguments.sdcGamma);
    ReadText(attributes.GetStr(AttributeIndex::kPath), arguments.path);
    ReadAttribute(attributes.GetInt(AttributeIndex::kBlockSize), arguments.blockSize);
    ReadList(attributes.GetListInt(AttributeIndex::kKeyStrides), arguments.keyStrides);
    ReadList(attributes.GetListInt(AttributeIndex::kValueStrides), arguments.valueStrides);
    ReadList(attributes.GetListInt(AttributeIndex::kKeyScaleStrides), arguments.keyScaleStrides);
    ReadList(attributes.GetListInt(AttributeIndex::kValueScaleStrides), arguments.valueScaleStrides);
    ReadAttribute(attributes.GetBool(AttributeIndex::kWithStats), arguments.withStats);
    ReadAttribute(attributes.GetBool(AttributeIndex::kPartial), arguments.partial);
}

}  // namespace toptheta
