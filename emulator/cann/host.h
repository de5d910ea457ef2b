// C functions over the recorded operator: its definition, shape inference and tiling, for ctypes and other libraries.
// A function returns 0, or 1 after an error whose text CannErrorMessage gives (to the thread that failed).
#pragma once

#include <cstdint>

extern "C" {

constexpr uint32_t kCannMaxRank = 8;
constexpr uint32_t kCannTilingCapacity = 2048;

// `type` is a ge::DataType; a tensor that is not present is an optional input left out.
struct CannTensor {
    int32_t present;
    int32_t type;
    uint32_t rank;
    int64_t dims[kCannMaxRank];
};

// The field that the attribute's type says holds the value; bool is in `integer`. Not given: the default.
struct CannAttribute {
    int32_t given;
    int64_t integer;
    double number;
    const char* text;
    const int64_t* list;
    uint64_t count;
};

struct CannPlatform {
    uint32_t cubeCores;
    uint32_t vectorCores;
    uint64_t ubBytes;
    uint64_t l2Bytes;
    uint32_t libApiWorkspaceBytes;
};

struct CannTiling {
    uint8_t data[kCannTilingCapacity];
    uint64_t dataBytes;
    uint64_t key;
    uint64_t workspaceBytes;
    uint32_t blockDim;
    uint32_t scheduleMode;
};

// Arrays have one element for each input, attribute and output of the definition, in its order.
const char* CannDescribeOperator();
int32_t CannInferOutputs(const CannTensor* inputs, const CannAttribute* attributes, CannTensor* outputs);
int32_t CannRunTiling(const CannTensor* inputs, const CannAttribute* attributes, const CannTensor* outputs,
                      const CannPlatform* platform, CannTiling* tiling);
const char* CannErrorMessage();

}  // extern "C"
