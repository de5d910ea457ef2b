// Element-wise instructions with a count: one row of `kCount` results for each call.
#include "api_harness.h"

using namespace harness;

constexpr uint32_t kCount = 200;

template <typename T, typename Call>
__aicore__ inline void Row(Bench& bench, GM_ADDR z, uint32_t row, Call call)
{
    LocalTensor<T> result = bench.Filled<T>(kCount, static_cast<T>(0));
    call(result);
    bench.Store(z, result, kCount, row * kCount);
}

template <typename T>
__aicore__ inline void BinaryRows(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kCount);
    LocalTensor<T> b = bench.Load<T>(y, kCount);
    Row<T>(bench, z, 0, [&](LocalTensor<T>& d) { Add(d, a, b, kCount); });
    Row<T>(bench, z, 1, [&](LocalTensor<T>& d) { Sub(d, a, b, kCount); });
    Row<T>(bench, z, 2, [&](LocalTensor<T>& d) { Mul(d, a, b, kCount); });
    Row<T>(bench, z, 3, [&](LocalTensor<T>& d) { Max(d, a, b, kCount); });
    Row<T>(bench, z, 4, [&](LocalTensor<T>& d) { Min(d, a, b, kCount); });
}

template <typename T>
__aicore__ inline void ScalarRows(GM_ADDR x, GM_ADDR, GM_ADDR z)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kCount);
    const T scalar = static_cast<T>(3);
    Row<T>(bench, z, 0, [&](LocalTensor<T>& d) { Adds(d, a, scalar, kCount); });
    Row<T>(bench, z, 1, [&](LocalTensor<T>& d) { Muls(d, a, scalar, kCount); });
    Row<T>(bench, z, 2, [&](LocalTensor<T>& d) { Maxs(d, a, scalar, kCount); });
    Row<T>(bench, z, 3, [&](LocalTensor<T>& d) { Mins(d, a, scalar, kCount); });
}

// y has no zeros and nothing negative.
template <typename T>
__aicore__ inline void FloatRows(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kCount);
    LocalTensor<T> b = bench.Load<T>(y, kCount);
    Row<T>(bench, z, 0, [&](LocalTensor<T>& d) { Div(d, a, b, kCount); });
    Row<T>(bench, z, 1, [&](LocalTensor<T>& d) { Exp(d, a, kCount); });
    Row<T>(bench, z, 2, [&](LocalTensor<T>& d) { Ln(d, b, kCount); });
    Row<T>(bench, z, 3, [&](LocalTensor<T>& d) { Abs(d, a, kCount); });
}

template <typename T>
__aicore__ inline void BitRows(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kCount);
    LocalTensor<T> b = bench.Load<T>(y, kCount);
    Row<T>(bench, z, 0, [&](LocalTensor<T>& d) { And(d, a, b, kCount); });
    Row<T>(bench, z, 1, [&](LocalTensor<T>& d) { Or(d, a, b, kCount); });
}

template <typename D, typename S>
__aicore__ inline void AccumulateRows(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Bench bench;
    LocalTensor<S> a = bench.Load<S>(x, kCount);
    LocalTensor<S> b = bench.Load<S>(y, kCount);
    for (uint32_t row = 0; row < 2; ++row) {
        LocalTensor<D> result = bench.Filled<D>(kCount, static_cast<D>(0.375f));
        if (row == 0) {
            MulAddDst(result, a, b, kCount);
        } else {
            Axpy(result, a, static_cast<S>(1.625f), kCount);
        }
        bench.Store(z, result, kCount, row * kCount);
    }
}

extern "C" {
__global__ __aicore__ void binary_half(GM_ADDR x, GM_ADDR y, GM_ADDR z) { BinaryRows<half>(x, y, z); }
__global__ __aicore__ void binary_float(GM_ADDR x, GM_ADDR y, GM_ADDR z) { BinaryRows<float>(x, y, z); }
__global__ __aicore__ void binary_int16(GM_ADDR x, GM_ADDR y, GM_ADDR z) { BinaryRows<int16_t>(x, y, z); }
__global__ __aicore__ void binary_int32(GM_ADDR x, GM_ADDR y, GM_ADDR z) { BinaryRows<int32_t>(x, y, z); }
__global__ __aicore__ void scalar_half(GM_ADDR x, GM_ADDR y, GM_ADDR z) { ScalarRows<half>(x, y, z); }
__global__ __aicore__ void scalar_float(GM_ADDR x, GM_ADDR y, GM_ADDR z) { ScalarRows<float>(x, y, z); }
__global__ __aicore__ void scalar_int16(GM_ADDR x, GM_ADDR y, GM_ADDR z) { ScalarRows<int16_t>(x, y, z); }
__global__ __aicore__ void scalar_int32(GM_ADDR x, GM_ADDR y, GM_ADDR z) { ScalarRows<int32_t>(x, y, z); }
__global__ __aicore__ void float_half(GM_ADDR x, GM_ADDR y, GM_ADDR z) { FloatRows<half>(x, y, z); }
__global__ __aicore__ void float_float(GM_ADDR x, GM_ADDR y, GM_ADDR z) { FloatRows<float>(x, y, z); }
__global__ __aicore__ void bits_int16(GM_ADDR x, GM_ADDR y, GM_ADDR z) { BitRows<int16_t>(x, y, z); }
__global__ __aicore__ void bits_uint16(GM_ADDR x, GM_ADDR y, GM_ADDR z) { BitRows<uint16_t>(x, y, z); }
__global__ __aicore__ void accumulate_half(GM_ADDR x, GM_ADDR y, GM_ADDR z) { AccumulateRows<half, half>(x, y, z); }
__global__ __aicore__ void accumulate_float(GM_ADDR x, GM_ADDR y, GM_ADDR z) { AccumulateRows<float, float>(x, y, z); }
__global__ __aicore__ void accumulate_mixed(GM_ADDR x, GM_ADDR y, GM_ADDR z) { AccumulateRows<float, half>(x, y, z); }
}
