#include "host.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/err_msg.h"
#include "describe.h"
#include "register/op_def_registry.h"
#include "tiling/platform/platform_ascendc.h"

namespace cann_host {
namespace {

thread_local std::string t_error;

// A function-local static: registration runs during the initialisation of another file's statics.
std::unique_ptr<ops::OpDef>& Definition()
{
    static std::unique_ptr<ops::OpDef> definition;
    return definition;
}

gert::NodeTensor MakeTensor(const CannTensor& tensor)
{
    gert::NodeTensor made{{}, gert::CompileTimeTensorDesc(static_cast<ge::DataType>(tensor.type))};
    for (gert::Shape* shape : {&made.shape.MutableOriginShape(), &made.shape.MutableStorageShape()}) {
        shape->SetDimNum(tensor.rank);
        for (uint32_t i = 0; i < tensor.rank; i++) {
            shape->SetDim(i, tensor.dims[i]);
        }
    }
    return made;
}

gert::AttributeValue MakeValue(const ops::OpAttrDef& definition, const CannAttribute& attribute)
{
    using Type = ops::OpAttrDef::Type;
    if (attribute.given == 0) {
        return definition.defaultValue;
    }
    switch (definition.type) {
        case Type::kInt:
            return attribute.integer;
        case Type::kFloat:
            return static_cast<float>(attribute.number);
        case Type::kBool:
            return attribute.integer != 0;
        case Type::kString:
            return std::string(attribute.text);
        case Type::kListInt:
            return gert::TypedContinuousVector<int64_t>(
                std::vector<int64_t>(attribute.list, attribute.list + attribute.count));
        default:
            return {};
    }
}

// Refuses what the generated aclnn function refuses: a required input or attribute left out.
bool MakeNode(const ops::OpDef& definition, const CannTensor* inputs, const CannAttribute* attributes,
              std::unique_ptr<gert::NodeContext>& node)
{
    std::vector<gert::AttributeValue> values;
    for (size_t i = 0; i < definition.attributes.size(); i++) {
        const ops::OpAttrDef& attribute = definition.attributes[i];
        if (attribute.option == ops::REQUIRED && attributes[i].given == 0) {
            ReportError("EZ1001", "%s: expected a value, got None", attribute.name.c_str());
            return false;
        }
        values.push_back(MakeValue(attribute, attributes[i]));
    }
    node.reset(new gert::NodeContext{definition.type, {}, {}, gert::RuntimeAttrs(std::move(values))});
    for (size_t i = 0; i < definition.inputs.size(); i++) {
        const ops::OpParamDef& input = definition.inputs[i];
        if (input.option == ops::REQUIRED && inputs[i].present == 0) {
            ReportError("EZ1001", "%s: expected a tensor, got None", input.name.c_str());
            return false;
        }
        node->inputs.push_back(inputs[i].present != 0 ? std::optional(MakeTensor(inputs[i])) : std::nullopt);
    }
    return true;
}

bool Finish(ge::graphStatus status)
{
    if (status != ge::GRAPH_SUCCESS && t_error.empty()) {
        ReportError("EZ9999", "the operator failed without a message");
    }
    return status == ge::GRAPH_SUCCESS;
}

bool InferOutputs(const CannTensor* inputs, const CannAttribute* attributes, CannTensor* outputs)
{
    const ops::OpDef& definition = *Definition();
    std::unique_ptr<gert::NodeContext> node;
    if (!MakeNode(definition, inputs, attributes, node)) {
        return false;
    }
    const gert::NodeTensor nothing{{}, gert::CompileTimeTensorDesc(ge::DT_UNDEFINED)};
    node->outputs.assign(definition.outputs.size(), nothing);
    gert::InferShapeContext shapes(*node);
    gert::InferDataTypeContext types(*node);
    if (!Finish(definition.inferShape(&shapes)) || !Finish(definition.inferDataType(&types))) {
        return false;
    }
    for (size_t i = 0; i < node->outputs.size(); i++) {
        const gert::Shape& shape = node->outputs[i].shape.GetOriginShape();
        if (shape.GetDimNum() > kCannMaxRank) {
            ReportError("EZ9999", "%s: expected at most %u dimensions", definition.outputs[i].name.c_str(),
                        kCannMaxRank);
            return false;
        }
        outputs[i] = {1, node->outputs[i].description.GetDataType(), static_cast<uint32_t>(shape.GetDimNum()), {}};
        for (uint32_t d = 0; d < outputs[i].rank; d++) {
            outputs[i].dims[d] = shape.GetDim(d);
        }
    }
    return true;
}

bool RunTiling(const CannTensor* inputs, const CannAttribute* attributes, const CannTensor* outputs,
               const CannPlatform& platform, CannTiling& tiling)
{
    const ops::OpDef& definition = *Definition();
    std::unique_ptr<gert::NodeContext> node;
    if (!MakeNode(definition, inputs, attributes, node)) {
        return false;
    }
    for (size_t i = 0; i < definition.outputs.size(); i++) {
        node->outputs.push_back(MakeTensor(outputs[i]));
    }
    fe::PlatFormInfos infos;
    infos.cubeCores = platform.cubeCores;
    infos.vectorCores = platform.vectorCores;
    infos.ubBytes = platform.ubBytes;
    infos.l2Bytes = platform.l2Bytes;
    infos.libApiWorkspaceBytes = platform.libApiWorkspaceBytes;
    gert::TilingOutcome outcome;
    gert::TilingContext context(*node, &infos, outcome);
    if (!Finish(definition.aiCore.tiling(&context))) {
        return false;
    }
    static_assert(sizeof(tiling.data) == sizeof(outcome.data), "both hold what CANN reserves for tiling data");
    std::memcpy(tiling.data, outcome.data, sizeof(tiling.data));
    tiling.dataBytes = outcome.dataBytes;
    tiling.key = outcome.key;
    tiling.blockDim = outcome.blockDim;
    tiling.scheduleMode = outcome.scheduleMode;
    tiling.workspaceBytes = outcome.workspaces.empty() ? 0 : outcome.workspaces[0];
    return true;
}

}  // namespace

void ReportError(const char*, const char* format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    t_error = text;
}

bool RegisterOperator(const ops::OpDef& definition)
{
    Definition() = std::make_unique<ops::OpDef>(definition);
    return true;
}

}  // namespace cann_host

extern "C" {

const char* CannDescribeOperator()
{
    static const std::string description = cann_host::DescribeAsJson(*cann_host::Definition());
    return description.c_str();
}

int32_t CannInferOutputs(const CannTensor* inputs, const CannAttribute* attributes, CannTensor* outputs)
{
    cann_host::t_error.clear();
    return cann_host::InferOutputs(inputs, attributes, outputs) ? 0 : 1;
}

int32_t CannRunTiling(const CannTensor* inputs, const CannAttribute* attributes, const CannTensor* outputs,
                      const CannPlatform* platform, CannTiling* tiling)
{
    cann_host::t_error.clear();
    return cann_host::RunTiling(inputs, attributes, outputs, *platform, *tiling) ? 0 : 1;
}

const char* CannErrorMessage() { return cann_host::t_error.c_str(); }

}  // extern "C"
