// What the contexts of tiling and of shape inference have in common.
#pragma once

#include <optional>

#include "exe_graph/runtime/runtime_attrs.h"
#include "exe_graph/runtime/shape.h"
#include "graph/types.h"

namespace gert {

class CompileTimeTensorDesc {
public:
    explicit CompileTimeTensorDesc(ge::DataType type) : type_(type) {}
    ge::DataType GetDataType() const { return type_; }

private:
    ge::DataType type_;
};

struct NodeTensor {
    StorageShape shape;
    CompileTimeTensorDesc description;
};

// One call of the operator. `inputs` is in the order of the definition; an optional input left out is empty.
struct NodeContext {
    std::string name;
    std::vector<std::optional<NodeTensor>> inputs;
    std::vector<NodeTensor> outputs;
    RuntimeAttrs attributes;
};

// CANN counts the inputs of a call in two ways: by position in the definition, and by position among those given.
class NodeView {
public:
    explicit NodeView(NodeContext& node) : node_(node) {}

    const char* GetNodeName() const { return node_.name.c_str(); }
    const RuntimeAttrs* GetAttrs() const { return &node_.attributes; }

protected:
    const NodeTensor* Given(size_t index) const
    {
        for (const std::optional<NodeTensor>& input : node_.inputs) {
            if (input.has_value() && index-- == 0) {
                return &*input;
            }
        }
        return nullptr;
    }
    const NodeTensor* Defined(size_t index) const
    {
        return index < node_.inputs.size() && node_.inputs[index].has_value() ? &*node_.inputs[index] : nullptr;
    }
    NodeTensor* Output(size_t index) const { return index < node_.outputs.size() ? &node_.outputs[index] : nullptr; }

    NodeContext& node_;
};

}  // namespace gert
