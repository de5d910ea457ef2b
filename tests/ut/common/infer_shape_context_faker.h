// Stands for the header of the same name in Ascend's operator repositories: what shape inference is called with.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "any_value.h"
#include "register/op_def_registry.h"

namespace gert {

class InfershapeContextPara {
public:
    struct Sizes {
        std::vector<int64_t> origin;
        std::vector<int64_t> storage;
    };
    struct TensorDescription {
        Sizes shape;
        ge::DataType dtype;
        ge::Format format;
    };
    struct OpAttr {
        std::string name;
        Ops::Transformer::AnyValue value;
    };

    InfershapeContextPara(std::string type, std::vector<TensorDescription> inputs,
                          std::vector<TensorDescription> outputs, std::vector<OpAttr> attributes)
        : opType(std::move(type)),
          inputTensors(std::move(inputs)),
          outputTensors(std::move(outputs)),
          opAttributes(std::move(attributes))
    {}

    std::string opType;
    std::vector<TensorDescription> inputTensors;  // DT_UNDEFINED: an optional input left out
    std::vector<TensorDescription> outputTensors;
    std::vector<OpAttr> opAttributes;  // by place, as there; the names are for readers
};

}  // namespace gert
