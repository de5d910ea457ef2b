#pragma once

#include "register/op_def_registry.h"

namespace ops {

ge::graphStatus InferShapeForTopThetaIncrementalAttention(gert::InferShapeContext* context);
ge::graphStatus InferDataTypeForTopThetaIncrementalAttention(gert::InferDataTypeContext* context);

}  // namespace ops
