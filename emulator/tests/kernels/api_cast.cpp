// Cast between all pairs of types, in every RoundMode that a pair has.
#include "api_harness.h"

using namespace harness;

constexpr uint32_t kPart = 4096;

template <typename D, typename S>
__aicore__ inline void CastAll(GM_ADDR x, GM_ADDR z, uint32_t count, RoundMode mode)
{
    Bench bench;
    LocalTensor<S> source = bench.Make<S>(kPart);
    LocalTensor<D> target = bench.Make<D>(kPart);
    GlobalTensor<S> from;
    from.SetGlobalBuffer((__gm__ S*)x, count);
    for (uint32_t done = 0; done < count; done += kPart) {
        const uint32_t part = count - done < kPart ? count - done : kPart;
        DataCopyPad(source, from[done], DataCopyExtParams(1, part * sizeof(S), 0, 0, 0),
                    DataCopyPadExtParams<S>(false, 0, 0, 0));
        PipeBarrier<PIPE_ALL>();
        Cast(target, source, mode, part);
        bench.Store(z, target, part, done);
    }
}

// The round modes follow one another in z. `first` and `last` are RoundModes.
template <typename D, typename S>
__aicore__ inline void CastModes(GM_ADDR x, GM_ADDR z, GM_ADDR size, RoundMode first, RoundMode last)
{
    GlobalTensor<uint32_t> count;
    count.SetGlobalBuffer((__gm__ uint32_t*)size, 1);
    const uint32_t elements = count.GetValue(0);
    for (uint8_t mode = static_cast<uint8_t>(first); mode <= static_cast<uint8_t>(last); ++mode) {
        CastAll<D, S>(x, z + (mode - static_cast<uint8_t>(first)) * elements * sizeof(D), elements,
                      static_cast<RoundMode>(mode));
    }
}

#define CAST_KERNEL(name, D, S, first, last)                                          \
    __global__ __aicore__ void name(GM_ADDR x, GM_ADDR z, GM_ADDR size)               \
    {                                                                                 \
        CastModes<D, S>(x, z, size, RoundMode::CAST_##first, RoundMode::CAST_##last); \
    }

extern "C" {
CAST_KERNEL(half_to_float, float, half, NONE, NONE)
CAST_KERNEL(bfloat16_to_float, float, bfloat16_t, NONE, NONE)
CAST_KERNEL(float_to_half, half, float, NONE, ODD)
CAST_KERNEL(float_to_bfloat16, bfloat16_t, float, RINT, TRUNC)
CAST_KERNEL(float_to_int32, int32_t, float, RINT, TRUNC)
CAST_KERNEL(float_to_int16, int16_t, float, RINT, TRUNC)
CAST_KERNEL(float_to_int64, int64_t, float, RINT, TRUNC)
CAST_KERNEL(float_to_float, float, float, RINT, TRUNC)
CAST_KERNEL(half_to_int32, int32_t, half, RINT, TRUNC)
CAST_KERNEL(half_to_int16, int16_t, half, RINT, TRUNC)
CAST_KERNEL(half_to_int8, int8_t, half, NONE, TRUNC)
CAST_KERNEL(half_to_uint8, uint8_t, half, NONE, TRUNC)
CAST_KERNEL(bfloat16_to_int32, int32_t, bfloat16_t, RINT, TRUNC)
CAST_KERNEL(int32_to_float, float, int32_t, NONE, TRUNC)
CAST_KERNEL(int16_to_half, half, int16_t, NONE, TRUNC)
CAST_KERNEL(int16_to_float, float, int16_t, NONE, NONE)
CAST_KERNEL(int64_to_float, float, int64_t, RINT, TRUNC)
CAST_KERNEL(int8_to_half, half, int8_t, NONE, NONE)
CAST_KERNEL(uint8_to_half, half, uint8_t, NONE, NONE)
CAST_KERNEL(int32_to_int16, int16_t, int32_t, NONE, NONE)
CAST_KERNEL(int32_to_int64, int64_t, int32_t, NONE, NONE)
CAST_KERNEL(int64_to_int32, int32_t, int64_t, NONE, NONE)

// ToFloat and ToBfloat16
__global__ __aicore__ void scalar_helpers(GM_ADDR x, GM_ADDR z, GM_ADDR)
{
    Bench bench;
    LocalTensor<float> source = bench.Load<float>(x, 8);
    LocalTensor<float> target = bench.Filled<float>(8, 0.0f);
    for (uint32_t i = 0; i < 8; ++i) {
        target.SetValue(i, ToFloat(ToBfloat16(source.GetValue(i))));
    }
    bench.Store(z, target, 8);
}
}
