#pragma once

#include "exe_graph/runtime/node_context.h"

namespace gert {

class InferShapeContext : public NodeView {
public:
    using NodeView::NodeView;

    const Shape* GetInputShape(size_t index) const
    {
        const NodeTensor* input = Given(index);
        return input == nullptr ? nullptr : &input->shape.GetOriginShape();
    }
    Shape* GetOutputShape(size_t index)
    {
        NodeTensor* output = Output(index);
        return output == nullptr ? nullptr : &output->shape.MutableOriginShape();
    }
};

}  // namespace gert
