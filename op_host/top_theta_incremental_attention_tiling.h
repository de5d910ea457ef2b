#pragma once

#include "register/op_def_registry.h"

namespace optiling {

ge::graphStatus TilingForTopThetaIncrementalAttention(gert::TilingContext* context);

}  // namespace optiling
