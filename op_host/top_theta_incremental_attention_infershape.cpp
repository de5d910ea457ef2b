// Shapes and dtypes of the outputs. What a call does not ask for is an empty tensor.
#include "top_theta_incremental_attention_infershape.h"

#include "base/err_msg.h"
#include "context_arguments.h"

namespace ops {
namespace {

using toptheta::OutputIndex;

constexpr int64_t kUnknownRank = -2;

gert::Shape MakeShape(const std::vector<int64_t>& sizes)
{
    gert::Shape shape;
    shape.SetDimNum(sizes.size());
    for (size_t i = 0; i < sizes.size(); i++) {
        shape.SetDim(i, sizes[i]);
    }
    return shape;
}

// Numbers of query rows have an axis of tokens where there are several. A shape may not be known yet.
gert::Shape PerRow(const gert::Shape& query, const toptheta::Arguments& arguments)
{
    const size_t axis = arguments.inputLayout == "BNSD" ? 2 : 1;
    const int64_t tokens = axis < query.GetDimNum() ? query.GetDim(axis) : 1;
    return tokens == 1 ? MakeShape({query.GetDim(0), arguments.numHeads})
                       : MakeShape({query.GetDim(0), arguments.numHeads, tokens});
}

gert::Shape Empty()
{
    gert::Shape shape;
    shape.SetDimNum(1);
    shape.SetDim(0, 0);
    return shape;
}

}  // namespace

ge::graphStatus InferShapeForTopThetaIncrementalAttention(gert::InferShapeContext* context)
{
    const gert::Shape* query = context->GetInputShape(toptheta::InputIndex::kQuery);
    const gert::RuntimeAttrs* attributes = context->GetAttrs();
    if (query == nullptr || attributes == nullptr || query->GetDimNum() == 0) {
        REPORT_INNER_ERR_MSG("EZ9999", "%s: expected a query with dimensions, and the attributes, got none",
                             context->GetNodeName());
        return ge::GRAPH_FAILED;
    }
    toptheta::Arguments arguments;
    toptheta::ReadAttributes(*attributes, arguments);
    const int64_t batch = query->GetDim(0);
    const bool unknown = batch == kUnknownRank;
    const gert::Shape perHead = unknown ? *query : PerRow(*query, arguments);
    const gert::Shape perKeyValueHead = unknown ? *query : MakeShape({batch, arguments.numKeyValueHeads});
    const bool stats = arguments.withStats;
    const bool partial = arguments.partial;
    gert::Shape shapes[OutputIndex::kCount] = {
        partial ? Empty() : *query,        stats ? perHead : Empty(),   stats || partial ? perHead : Empty(),
        stats ? perKeyValueHead : Empty(), partial ? *query : Empty(),  partial ? perHead : Empty(),
        partial ? perHead : Empty(),       partial ? perHead : Empty(),
    };
    for (uint32_t i = 0; i < OutputIndex::kCount; i++) {
        gert::Shape* output = context->GetOutputShape(i);
        if (output == nullptr) {
            return ge::GRAPH_FAILED;
        }
        *output = shapes[i];
    }
    return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataTypeForTopThetaIncrementalAttention(gert::InferDataTypeContext* context)
{
    const ge::DataType types[OutputIndex::kCount] = {
        context->GetInputDataType(toptheta::InputIndex::kQuery),
        ge::DT_FLOAT,
        ge::DT_INT32,
        ge::DT_INT32,
        ge::DT_FLOAT,
        ge::DT_FLOAT,
        ge::DT_FLOAT,
        ge::DT_FLOAT,
    };
    for (uint32_t i = 0; i < OutputIndex::kCount; i++) {
        if (context->SetOutputDataType(i, types[i]) != ge::GRAPH_SUCCESS) {
            return ge::GRAPH_FAILED;
        }
    }
    return ge::GRAPH_SUCCESS;
}

}  // namespace ops
