// Checks that any operator could make of one argument: dtype, shape, choice, range.
#pragma once

#include <algorithm>
#include <cmath>

#include "argument_error.h"
#include "operator_arguments.h"

namespace toptheta {

inline const char* TypeName(ElementType type)
{
    switch (type) {
        case ElementType::kFloat16:
            return "float16";
        case ElementType::kBfloat16:
            return "bfloat16";
        case ElementType::kFloat32:
            return "float32";
        case ElementType::kInt8:
            return "int8";
        case ElementType::kInt32:
            return "int32";
        case ElementType::kInt64:
            return "int64";
        default:
            return "another dtype";
    }
}

inline ArgumentError CheckType(const std::string& name, const TensorDescription& tensor,
                               const std::vector<ElementType>& wanted)
{
    if (std::find(wanted.begin(), wanted.end(), tensor.type) != wanted.end()) {
        return {};
    }
    std::string names;
    for (const ElementType type : wanted) {
        names += (names.empty() ? "" : " or ") + std::string(TypeName(type));
    }
    return TypeError(name, "dtype " + names, TypeName(tensor.type),
                     "convert it with " + name + ".to(torch." + TypeName(wanted.front()) + ")");
}

// A negative size in `wanted` matches any.
inline ArgumentError CheckShape(const std::string& name, const TensorDescription& tensor,
                                const std::vector<int64_t>& wanted, const std::string& meaning)
{
    bool same = tensor.dims.size() == wanted.size();
    std::string text;
    for (size_t i = 0; i < wanted.size(); i++) {
        same = same && (wanted[i] < 0 || tensor.dims[i] == wanted[i]);
        text += (i == 0 ? "" : ", ") + (wanted[i] < 0 ? std::string("any") : std::to_string(wanted[i]));
    }
    return same ? ArgumentError() : ValueError(name, "shape [" + text + "]" + meaning, ListText(tensor.dims));
}

inline ArgumentError CheckChoice(const std::string& name, const std::string& value,
                                 const std::vector<std::string>& choices)
{
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) {
        return {};
    }
    std::string names;
    for (const std::string& choice : choices) {
        names += (names.empty() ? "" : ", ") + choice;
    }
    return ValueError(name, "one of " + names, Quoted(value));
}

inline ArgumentError CheckFinite(const std::string& name, float value, bool atLeastZero)
{
    if (std::isfinite(value) && (!atLeastZero || value >= 0)) {
        return {};
    }
    return ValueError(name, atLeastZero ? "a finite number >= 0" : "a finite number", NumberText(value));
}

}  // namespace toptheta
