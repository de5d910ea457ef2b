// Glue between CANN and tiling_math.h.
#include "top_theta_incremental_attention_tiling.h"

#include "base/err_msg.h"
#include "context_arguments.h"
#include "tiling/platform/platform_ascendc.h"
#include "tiling_math.h"

namespace optiling {
namespace {

using TilingData = toptheta::TopThetaIncrementalAttentionTilingData;

ge::graphStatus Fail(const gert::TilingContext& context, const std::string& message)
{
    REPORT_INNER_ERR_MSG("EZ9999", "%s: %s", context.GetNodeName(), message.c_str());
    return ge::GRAPH_FAILED;
}

// The origin shape is the shape of the view, whatever the storage behind it.
template <typename Description>
toptheta::TensorDescription Describe(const gert::StorageShape* shape, const Description* description)
{
    toptheta::TensorDescription tensor;
    if (shape == nullptr || description == nullptr) {
        return tensor;
    }
    tensor.present = true;
    tensor.type = toptheta::ElementTypeOf(description->GetDataType());
    tensor.dims = toptheta::DimsOf(shape->GetOriginShape());
    return tensor;
}

bool ReadArguments(const gert::TilingContext& context, toptheta::Arguments& arguments)
{
    for (uint32_t i = 0; i < toptheta::kRequiredInputs; i++) {
        arguments.inputs[i] = Describe(context.GetInputShape(i), context.GetInputDesc(i));
    }
    for (uint32_t i = toptheta::kRequiredInputs; i < toptheta::InputIndex::kCount; i++) {
        arguments.inputs[i] = Describe(context.GetOptionalInputShape(i), context.GetOptionalInputDesc(i));
    }
    bool complete = context.GetAttrs() != nullptr;
    for (uint32_t i = 0; i < toptheta::OutputIndex::kCount; i++) {
        arguments.outputs[i] = Describe(context.GetOutputShape(i), context.GetOutputDesc(i));
        complete = complete && arguments.outputs[i].present;
    }
    for (uint32_t i = 0; i < toptheta::kRequiredInputs; i++) {
        complete = complete && arguments.Has(i);
    }
    if (complete) {
        toptheta::ReadAttributes(*context.GetAttrs(), arguments);
    }
    return complete;
}

toptheta::Platform ReadPlatform(const gert::TilingContext& context)
{
    const platform_ascendc::PlatformAscendC soc(context.GetPlatformInfo());
    toptheta::Platform platform;
    platform.vectorCores = soc.GetCoreNumAiv();
    platform.cubeCores = soc.GetCoreNumAic();
    soc.GetCoreMemSize(platform_ascendc::CoreMemType::UB, platform.ubBytes);
    soc.GetCoreMemSize(platform_ascendc::CoreMemType::L2, platform.l2Bytes);
    platform.systemWorkspaceBytes = soc.GetLibApiWorkSpaceSize();
    return platform;
}

}  // namespace

ge::graphStatus TilingForTopThetaIncrementalAttention(gert::TilingContext* context)
{
    toptheta::Arguments arguments;
    if (!ReadArguments(*context, arguments)) {
        return Fail(*context, "expected every required input, every output and the attributes, got a null pointer");
    }
    toptheta::Tiling tiling;
    if (const toptheta::ArgumentError error = ComputeTiling(arguments, ReadPlatform(*context), tiling)) {
        return Fail(*context, error.message);
    }
    TilingData* data = context->GetTilingData<TilingData>();
    size_t* workspaces = context->GetWorkspaceSizes(1);
    if (data == nullptr || workspaces == nullptr) {
        return Fail(*context, "expected room for the tiling data and one workspace, got none");
    }
    *data = tiling.data;
    workspaces[0] = tiling.workspaceBytes;
    context->SetBlockDim(tiling.blockDim);
    context->SetTilingKey(tiling.key);
    context->SetScheduleMode(tiling.scheduleMode);
    return ge::GRAPH_SUCCESS;
}

}  // namespace optiling
