#include "describe.h"

#include <charconv>

namespace cann_host {
namespace {

std::string Quoted(const std::string& text)
{
    std::string quoted = "\"";
    for (const char letter : text) {
        if (letter == '"' || letter == '\\') {
            quoted += '\\';
        }
        quoted += letter;
    }
    return quoted + "\"";
}

template <typename Items, typename Text>
std::string List(const Items& items, const Text& text)
{
    std::string list;
    for (const auto& item : items) {
        list += (list.empty() ? "" : ", ") + text(item);
    }
    return "[" + list + "]";
}

std::string OptionName(ops::Option option)
{
    switch (option) {
        case ops::OPTIONAL:
            return "optional";
        case ops::REQUIRED:
            return "required";
        case ops::DYNAMIC:
            return "dynamic";
        default:
            return "ignore";
    }
}

std::string TypeName(ge::DataType type)
{
    switch (type) {
        case ge::DT_FLOAT:
            return "float32";
        case ge::DT_FLOAT16:
            return "float16";
        case ge::DT_BF16:
            return "bfloat16";
        case ge::DT_INT8:
            return "int8";
        case ge::DT_INT32:
            return "int32";
        case ge::DT_INT64:
            return "int64";
        default:
            return "ge::DataType(" + std::to_string(type) + ")";
    }
}

std::string FormatName(ge::Format format)
{
    return format == ge::FORMAT_ND ? "ND" : "ge::Format(" + std::to_string(format) + ")";
}

// The shortest text that reads back as the same float32: 0.05, not 0.0500000007.
std::string FloatText(float value)
{
    char text[32];
    const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
    return std::string(text, end.ptr);
}

std::string ValueText(const gert::AttributeValue& value)
{
    if (const auto* integer = std::get_if<int64_t>(&value)) {
        return std::to_string(*integer);
    }
    if (const auto* number = std::get_if<float>(&value)) {
        return FloatText(*number);
    }
    if (const auto* flag = std::get_if<bool>(&value)) {
        return *flag ? "true" : "false";
    }
    if (const auto* text = std::get_if<std::string>(&value)) {
        return Quoted(*text);
    }
    if (const auto* list = std::get_if<gert::TypedContinuousVector<int64_t>>(&value)) {
        const std::vector<int64_t> items(list->GetData(), list->GetData() + list->GetSize());
        return List(items, [](int64_t item) { return std::to_string(item); });
    }
    return "null";
}

std::string AttributeTypeName(ops::OpAttrDef::Type type)
{
    using Type = ops::OpAttrDef::Type;
    switch (type) {
        case Type::kInt:
            return "int";
        case Type::kFloat:
            return "float";
        case Type::kBool:
            return "bool";
        case Type::kString:
            return "string";
        case Type::kListInt:
            return "list_int";
        default:
            return "none";
    }
}

std::string Parameter(const ops::OpParamDef& parameter)
{
    const std::string contiguous = parameter.ignoreContiguous ? "ignore" : parameter.autoContiguous ? "auto" : "unset";
    return "{\"name\": " + Quoted(parameter.name) + ", \"option\": " + Quoted(OptionName(parameter.option)) +
           ", \"types\": " + List(parameter.types, [](ge::DataType type) { return Quoted(TypeName(type)); }) +
           ", \"formats\": " + List(parameter.formats, [](ge::Format format) { return Quoted(FormatName(format)); }) +
           ", \"contiguous\": " + Quoted(contiguous) +
           ", \"value_depend\": " + Quoted(OptionName(parameter.valueDepend)) + "}";
}

std::string Attribute(const ops::OpAttrDef& attribute)
{
    return "{\"name\": " + Quoted(attribute.name) + ", \"option\": " + Quoted(OptionName(attribute.option)) +
           ", \"type\": " + Quoted(AttributeTypeName(attribute.type)) +
           ", \"default\": " + ValueText(attribute.defaultValue) + "}";
}

}  // namespace

std::string DescribeAsJson(const ops::OpDef& definition)
{
    return "{\"type\": " + Quoted(definition.type) + ",\n \"inputs\": " + List(definition.inputs, Parameter) +
           ",\n \"attributes\": " + List(definition.attributes, Attribute) +
           ",\n \"outputs\": " + List(definition.outputs, Parameter) +
           ",\n \"socs\": " + List(definition.aiCore.socs, Quoted) + "}";
}

}  // namespace cann_host
