// The tensors of the kernels that show what a call checks.
#pragma once

#include "api_harness.h"

namespace harness {

constexpr uint32_t kFloats = 1024;

// Three tensors of kFloats elements, all initialised, and the same bytes in other types.
struct Floats {
    Bench bench;
    LocalTensor<float> a = bench.Filled<float>(kFloats, 1.0f);
    LocalTensor<float> b = bench.Filled<float>(kFloats, 2.0f);
    LocalTensor<float> d = bench.Filled<float>(kFloats, 3.0f);
    LocalTensor<half> ha = a.ReinterpretCast<half>();
    LocalTensor<half> hb = b.ReinterpretCast<half>();
    LocalTensor<half> hd = d.ReinterpretCast<half>();
    LocalTensor<uint8_t> bits = d.ReinterpretCast<uint8_t>();
    LocalTensor<int32_t> ints = b.ReinterpretCast<int32_t>();
    LocalTensor<uint32_t> words = b.ReinterpretCast<uint32_t>();
    LocalTensor<uint32_t> all = bench.Filled<uint32_t>(32, ~0u);  // a pattern that keeps everything
    uint64_t count = 0;
};

const BinaryRepeatParams kBinary(1, 1, 1, 8, 8, 8);
const UnaryRepeatParams kUnary(1, 1, 8, 8);
const GatherMaskParams kGather(1, 1, 8, 8);

// The same with a tensor of kFloats elements on each side in global memory.
struct Copies : Floats {
    GlobalTensor<float> x;
    GlobalTensor<float> z;
    Copies(GM_ADDR from, GM_ADDR to)
    {
        x.SetGlobalBuffer((__gm__ float*)from, 1024);
        z.SetGlobalBuffer((__gm__ float*)to, 1024);
    }
};

}  // namespace harness
