// Where a kernel runs: block index and number, workspace, core type.
#pragma once

#include <cstdint>

#include "enums.h"
#include "machine/core.h"
#include "qualifiers.h"

// The condition of an `if` without parentheses: `if ASCEND_IS_AIC { ... }`. Known at run time, as in the toolkit's CPU
// mode; on the device the compiler decides.
#define ASCEND_IS_AIV (ascendc_host::Core::Current().Kind() == ascendc_host::CoreKind::kVector)
#define ASCEND_IS_AIC (ascendc_host::Core::Current().Kind() == ascendc_host::CoreKind::kCube)
#define ASCEND_IS_NOT_AIV (!ASCEND_IS_AIV)
#define ASCEND_IS_NOT_AIC (!ASCEND_IS_AIC)

namespace AscendC {

inline int64_t GetBlockIdx() { return ascendc_host::Core::Current().BlockIdx(); }

inline int64_t GetBlockNum() { return ascendc_host::Core::Current().BlockNum(); }

// Which of its block's vector cores this is; 0 on a cube core.
inline int64_t GetSubBlockIdx() { return ascendc_host::Core::Current().SubBlockIdx(); }

// How many cores of this kind a block has: 1 on a cube core.
inline int64_t GetTaskRation() { return ascendc_host::Core::Current().TaskRation(); }

inline int64_t GetSubBlockNum() { return GetTaskRation(); }

// The launcher hands over the user's part of the workspace, as the CPU mode of the toolkit does.
inline GM_ADDR GetUserWorkspace(GM_ADDR workspace) { return workspace; }

}  // namespace AscendC
