// Where a kernel runs: block index and number, workspace, core type.
#pragma once

#include <cstdint>

#include "enums.h"
#include "machine/core.h"
#include "qualifiers.h"

// The model has vector cores only.
#define ASCEND_IS_AIV constexpr(true)
#define ASCEND_IS_AIC constexpr(false)
#define ASCEND_IS_NOT_AIV constexpr(false)
#define ASCEND_IS_NOT_AIC constexpr(true)

namespace AscendC {

inline int64_t GetBlockIdx() {
    return ascendc_host::Core::Current().BlockIdx();
}

inline int64_t GetBlockNum() {
    return ascendc_host::Core::Current().BlockNum();
}

inline int64_t GetSubBlockIdx() {
    return 0;
}

inline int64_t GetSubBlockNum() {
    return 1;
}

inline int64_t GetTaskRation() {
    return 1;
}

// The launcher hands over the user's part of the workspace, as the CPU mode of the toolkit does.
inline GM_ADDR GetUserWorkspace(GM_ADDR workspace) {
    return workspace;
}

}  // namespace AscendC
