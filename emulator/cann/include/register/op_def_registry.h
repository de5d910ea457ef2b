// Operator definitions, recorded as data instead of being turned into CANN's generated code.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exe_graph/runtime/infer_datatype_context.h"
#include "exe_graph/runtime/infer_shape_context.h"
#include "exe_graph/runtime/tiling_context.h"

namespace ops {

enum Option { IGNORE = 0, OPTIONAL = 1, REQUIRED = 2, DYNAMIC = 3, VIRTUAL = 4 };

class OpParamDef {
public:
    explicit OpParamDef(const char* name) : name(name) {}

    OpParamDef& ParamType(Option value) { return Set(option, value); }
    OpParamDef& DataType(std::vector<ge::DataType> values) { return Set(types, std::move(values)); }
    OpParamDef& Format(std::vector<ge::Format> values) { return Set(formats, std::move(values)); }
    OpParamDef& ValueDepend(Option value) { return Set(valueDepend, value); }
    OpParamDef& AutoContiguous() { return Set(autoContiguous, true); }
    OpParamDef& IgnoreContiguous() { return Set(ignoreContiguous, true); }

    std::string name;
    Option option = IGNORE;
    Option valueDepend = IGNORE;
    std::vector<ge::DataType> types;
    std::vector<ge::Format> formats;
    bool autoContiguous = false;
    bool ignoreContiguous = false;

private:
    template <typename T>
    OpParamDef& Set(T& target, T value)
    {
        target = std::move(value);
        return *this;
    }
};

class OpAttrDef {
public:
    enum class Type { kNone, kInt, kFloat, kBool, kString, kListInt };

    explicit OpAttrDef(const char* name) : name(name) {}

    OpAttrDef& AttrType(Option value)
    {
        option = value;
        return *this;
    }
    OpAttrDef& Int() { return Set(Type::kInt, {}); }
    OpAttrDef& Int(int64_t value) { return Set(Type::kInt, value); }
    OpAttrDef& Float() { return Set(Type::kFloat, {}); }
    OpAttrDef& Float(float value) { return Set(Type::kFloat, value); }
    OpAttrDef& Bool() { return Set(Type::kBool, {}); }
    OpAttrDef& Bool(bool value) { return Set(Type::kBool, value); }
    OpAttrDef& String() { return Set(Type::kString, {}); }
    OpAttrDef& String(const char* value) { return Set(Type::kString, std::string(value)); }
    OpAttrDef& ListInt() { return Set(Type::kListInt, {}); }
    OpAttrDef& ListInt(std::vector<int64_t> value)
    {
        return Set(Type::kListInt, gert::TypedContinuousVector<int64_t>(std::move(value)));
    }

    std::string name;
    Option option = IGNORE;
    Type type = Type::kNone;
    gert::AttributeValue defaultValue;

private:
    OpAttrDef& Set(Type newType, gert::AttributeValue value)
    {
        type = newType;
        defaultValue = std::move(value);
        return *this;
    }
};

class OpAICoreDef {
public:
    using TilingFunction = ge::graphStatus (*)(gert::TilingContext*);

    OpAICoreDef& SetTiling(TilingFunction function)
    {
        tiling = function;
        return *this;
    }
    OpAICoreDef& AddConfig(const char* soc)
    {
        socs.emplace_back(soc);
        return *this;
    }

    TilingFunction tiling = nullptr;
    std::vector<std::string> socs;
};

class OpDef {
public:
    using InferShapeFunction = ge::graphStatus (*)(gert::InferShapeContext*);
    using InferDataTypeFunction = ge::graphStatus (*)(gert::InferDataTypeContext*);

    explicit OpDef(const char* type) : type(type) {}

    OpParamDef& Input(const char* name) { return GetOrCreate(inputs, name); }
    OpParamDef& Output(const char* name) { return GetOrCreate(outputs, name); }
    OpAttrDef& Attr(const char* name) { return GetOrCreate(attributes, name); }
    OpAICoreDef& AICore() { return aiCore; }
    OpDef& SetInferShape(InferShapeFunction function)
    {
        inferShape = function;
        return *this;
    }
    OpDef& SetInferDataType(InferDataTypeFunction function)
    {
        inferDataType = function;
        return *this;
    }

    std::string type;
    std::vector<OpParamDef> inputs;
    std::vector<OpParamDef> outputs;
    std::vector<OpAttrDef> attributes;
    OpAICoreDef aiCore;
    InferShapeFunction inferShape = nullptr;
    InferDataTypeFunction inferDataType = nullptr;

private:
    template <typename T>
    static T& GetOrCreate(std::vector<T>& items, const char* name)
    {
        for (T& item : items) {
            if (item.name == name) {
                return item;
            }
        }
        return items.emplace_back(name);
    }
};

}  // namespace ops

namespace cann_host {

// Keeps the definition for the C functions in host.h.
bool RegisterOperator(const ops::OpDef& definition);

}  // namespace cann_host

// a macro because CANN has one under this name
#define OP_ADD(type, ...) static const bool g_##type##Registered = cann_host::RegisterOperator(type(#type))
