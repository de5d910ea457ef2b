// What the operator is called with: shapes, dtypes and attributes, never the values of tensors. Free of CANN.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "../op_kernel/top_theta_incremental_attention_tiling_data.h"

namespace toptheta {

// Positions in the operator definition.
struct AttributeIndex {
    enum : uint32_t {
        kNumHeads,
        kNumKeyValueHeads,
        kScaleValue,
        kInputLayout,
        kKeyAntiquantMode,
        kValueAntiquantMode,
        kPlacement,
        kSdc,
        kSdcGamma,
        kPath,
        kBlockSize,
        kKeyStrides,
        kValueStrides,
        kKeyScaleStrides,
        kValueScaleStrides,
        kWithStats,
        kPartial,
        kCount
    };
};

struct OutputIndex {
    enum : uint32_t {
        kAttentionOut,
        kLse,
        kKept,
        kValueRows,
        kPartOut,
        kPartMaximum,
        kPartKeptMass,
        kPartDiscardedMass,
        kCount
    };
};

// The inputs after these four are optional.
constexpr uint32_t kRequiredInputs = InputIndex::kActualSeqLengths;

enum class ElementType : uint32_t { kOther, kFloat16, kBfloat16, kFloat32, kInt8, kInt32, kInt64 };

struct TensorDescription {
    bool present = false;
    ElementType type = ElementType::kOther;
    std::vector<int64_t> dims;
};

struct Arguments {
    std::array<TensorDescription, InputIndex::kCount> inputs;
    std::array<TensorDescription, OutputIndex::kCount> outputs;
    int64_t numHeads = 0;
    int64_t numKeyValueHeads = 0;
    float scaleValue = 1.0F;
    std::string inputLayout = "BNSD";
    int64_t keyAntiquantMode = kPerChannel;
    int64_t valueAntiquantMode = kPerChannel;
    std::string placement = "pre_softmax";
    std::string sdc = "exact";
    float sdcGamma = 0.05F;
    std::string path = "auto";
    int64_t blockSize = 0;
    std::vector<int64_t> keyStrides;    // elements: sequence or page, head, row; empty: contiguous
    std::vector<int64_t> valueStrides;
    std::vector<int64_t> keyScaleStrides;  // the same of scales per token and head
    std::vector<int64_t> valueScaleStrides;
    bool withStats = false;
    bool partial = false;

    bool Has(uint32_t input) const { return inputs[input].present; }
    const std::vector<int64_t>& Dims(uint32_t input) const { return inputs[input].dims; }
    bool Paged() const { return Has(InputIndex::kBlockTable); }
};

}  // namespace toptheta
