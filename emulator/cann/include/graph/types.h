// Types of the CANN graph library, as far as the operator's host code uses them; values as in CANN.
#pragma once

#include <cstdint>

namespace ge {

using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0;
constexpr graphStatus GRAPH_FAILED = 0xFFFFFFFF;

enum DataType {
    DT_FLOAT = 0,
    DT_FLOAT16 = 1,
    DT_INT8 = 2,
    DT_INT32 = 3,
    DT_INT64 = 9,
    DT_DOUBLE = 11,
    DT_BF16 = 27,
    DT_UNDEFINED = 28,
};

enum Format { FORMAT_ND = 2 };

}  // namespace ge
