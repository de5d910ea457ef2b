// The header that an Ascend C kernel includes, for the host model: the same names, templates and arguments as the
// toolkit's header, for the vector core of the 910B class. Every call runs on the machine of emulator/ascendc/machine,
// which checks it and records it for the modelled timeline.
#pragma once

#include "ascendc/cast.h"
#include "ascendc/compare.h"
#include "ascendc/constants.h"
#include "ascendc/data_copy.h"
#include "ascendc/duplicate.h"
#include "ascendc/enums.h"
#include "ascendc/gather.h"
#include "ascendc/gather_mask.h"
#include "ascendc/half.h"
#include "ascendc/pipe.h"
#include "ascendc/qualifiers.h"
#include "ascendc/queue.h"
#include "ascendc/reduce.h"
#include "ascendc/registers.h"
#include "ascendc/repeat_params.h"
#include "ascendc/scalar.h"
#include "ascendc/select.h"
#include "ascendc/sync.h"
#include "ascendc/system.h"
#include "ascendc/tensor.h"
#include "ascendc/tiling_macros.h"
#include "ascendc/vec_index.h"
#include "ascendc/vector_binary.h"
#include "ascendc/vector_scalar.h"
#include "ascendc/vector_ternary.h"
#include "ascendc/vector_unary.h"

#include "ascendc/poison.h"
