// Definition, shape inference and tiling of z = alpha * x + y.
#include "../op_kernel/axpy_tiling.h"
#include "base/err_msg.h"
#include "register/op_def_registry.h"
#include "tiling/platform/platform_ascendc.h"

namespace ops {

static ge::graphStatus InferShape(gert::InferShapeContext* context)
{
    *context->GetOutputShape(0) = *context->GetInputShape(0);
    return ge::GRAPH_SUCCESS;
}

static ge::graphStatus InferDataType(gert::InferDataTypeContext* context)
{
    return context->SetOutputDataType(0, context->GetInputDataType(0));
}

static ge::graphStatus Tiling(gert::TilingContext* context)
{
    const int64_t elements = context->GetInputShape(0)->GetOriginShape().GetDim(0);
    const platform_ascendc::PlatformAscendC soc(context->GetPlatformInfo());
    const int64_t blocks = soc.GetCoreNumAiv();
    if (elements <= 0 || elements % (blocks * kTile) != 0) {
        REPORT_INNER_ERR_MSG("EZ9999", "x: expected a multiple of %ld elements, got %ld",
                             static_cast<long>(blocks * kTile), static_cast<long>(elements));
        return ge::GRAPH_FAILED;
    }
    AxpyTiling* data = context->GetTilingData<AxpyTiling>();
    *data = {static_cast<uint32_t>(elements / (blocks * kTile)), *context->GetAttrs()->GetFloat(0)};
    context->SetBlockDim(static_cast<uint32_t>(blocks));
    context->GetWorkspaceSizes(1)[0] = soc.GetLibApiWorkSpaceSize();
    return ge::GRAPH_SUCCESS;
}

class Axpy : public OpDef {
public:
    explicit Axpy(const char* name) : OpDef(name)
    {
        Define(Input("x"));
        Define(Input("y"));
        Define(Output("z"));
        Attr("alpha").AttrType(OPTIONAL).Float(1.0F);
        SetInferShape(InferShape);
        SetInferDataType(InferDataType);
        AICore().SetTiling(Tiling).AddConfig("ascend910b");
    }

private:
    static void Define(OpParamDef& tensor)
    {
        tensor.ParamType(REQUIRED).DataType({ge::DT_FLOAT}).Format({ge::FORMAT_ND}).AutoContiguous();
    }
};

OP_ADD(Axpy);

}  // namespace ops
