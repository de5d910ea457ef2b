// The arguments of the operator by name.
#pragma once

#include "row_output.h"
#include "unit_parameters.h"

namespace toptheta {

struct KernelTensors {
    GM_ADDR key;
    GM_ADDR value;
    GM_ADDR lengths;
    GM_ADDR starts;
    GM_ADDR blockTable;
    ParameterTensors parameters;
    OutputTensors outputs;
};

}  // namespace toptheta
