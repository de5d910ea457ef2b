// Stands for the header of the same name in Ascend's operator repositories: the value of an attribute.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace Ops::Transformer {

struct AnyValue {
    std::variant<int64_t, float, bool, std::string, std::vector<int64_t>> value;

    template <typename T>
    static AnyValue CreateFrom(const T& value)
    {
        return {value};
    }
};

}  // namespace Ops::Transformer
