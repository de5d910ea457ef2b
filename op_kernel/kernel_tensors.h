// The arguments of the operator by name.
#pragma once

#include "row_output.h"
#include "sequence_lengths.h"
#include "unit_parameters.h"

namespace toptheta {

// `scales`: where those of int8 caches lie, null for others.
struct KernelTensors {
    GM_ADDR key;
    GM_ADDR value;
    GM_ADDR keyScale;
    GM_ADDR valueScale;
    LengthInputs lengths;
    GM_ADDR blockTable;
    ParameterTensors parameters;
    OutputTensors outputs;
    const TopThetaIncrementalAttentionTilingData* scales;
};

}  // namespace toptheta
