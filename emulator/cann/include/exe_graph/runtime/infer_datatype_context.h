#pragma once

#include "exe_graph/runtime/node_context.h"

namespace gert {

class InferDataTypeContext : public NodeView {
public:
    using NodeView::NodeView;

    ge::DataType GetInputDataType(size_t index) const
    {
        const NodeTensor* input = Given(index);
        return input == nullptr ? ge::DT_UNDEFINED : input->description.GetDataType();
    }
    ge::graphStatus SetOutputDataType(size_t index, ge::DataType type)
    {
        NodeTensor* output = Output(index);
        if (output == nullptr) {
            return ge::GRAPH_FAILED;
        }
        output->description = CompileTimeTensorDesc(type);
        return ge::GRAPH_SUCCESS;
    }
};

}  // namespace gert
