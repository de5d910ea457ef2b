// Stands for the header of the same name in Ascend's operator repositories: runs shape inference over the emulator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "host.h"
#include "infer_shape_context_faker.h"

inline CannAttribute MakeAttribute(const Ops::Transformer::AnyValue& any)
{
    CannAttribute attribute = {};
    attribute.given = 1;
    if (const auto* integer = std::get_if<int64_t>(&any.value)) {
        attribute.integer = *integer;
    } else if (const auto* flag = std::get_if<bool>(&any.value)) {
        attribute.integer = *flag ? 1 : 0;
    } else if (const auto* number = std::get_if<float>(&any.value)) {
        attribute.number = *number;
    } else if (const auto* text = std::get_if<std::string>(&any.value)) {
        attribute.text = text->c_str();
    } else if (const auto* list = std::get_if<std::vector<int64_t>>(&any.value)) {
        attribute.list = list->data();
        attribute.count = list->size();
    }
    return attribute;
}

inline void ExecuteTestCase(const gert::InfershapeContextPara& para, ge::graphStatus expected,
                            const std::vector<std::vector<int64_t>>& expectedShapes = {})
{
    std::vector<CannTensor> inputs;
    for (const auto& input : para.inputTensors) {
        const std::vector<int64_t>& sizes = input.shape.origin;
        inputs.push_back({input.dtype != ge::DT_UNDEFINED,
                          static_cast<int32_t>(input.dtype),
                          static_cast<uint32_t>(sizes.size()),
                          {}});
        std::copy(sizes.begin(), sizes.end(), inputs.back().dims);
    }
    std::vector<CannAttribute> attributes;
    for (const auto& attribute : para.opAttributes) {
        attributes.push_back(MakeAttribute(attribute.value));
    }
    std::vector<CannTensor> outputs(para.outputTensors.size());
    const int32_t failed = CannInferOutputs(inputs.data(), attributes.data(), outputs.data());
    ASSERT_EQ(failed == 0 ? ge::GRAPH_SUCCESS : ge::GRAPH_FAILED, expected) << CannErrorMessage();
    if (failed != 0) {
        return;
    }
    ASSERT_EQ(outputs.size(), expectedShapes.size());
    for (size_t i = 0; i < outputs.size(); i++) {
        EXPECT_EQ(std::vector<int64_t>(outputs[i].dims, outputs[i].dims + outputs[i].rank), expectedShapes[i])
            << "output " << i;
    }
}
