// A product on the cube core, [m, k] x [n, k] transposed, for the kernels of the cube's tests.
#pragma once

#include "kernel_operator.h"

namespace harness {

using namespace AscendC;

constexpr uint32_t kEdge = 16;      // rows and columns of a fractal
constexpr uint32_t kFractal = 256;  // elements of 16 bits, or numbers of a result
template <typename T>
constexpr uint32_t kDepth = 32 / sizeof(T);
template <typename T>
constexpr uint32_t kElements = kEdge * kDepth<T>;  // of a fractal

// What products of a type add up to.
template <typename T>
struct Sum {
    using Type = float;
};
template <>
struct Sum<int8_t> {
    using Type = int32_t;
};

// Strides in elements. `columns` of the result are worked on at a time.
struct Product {
    uint32_t m, n, k;
    uint32_t leftStride, rightStride, resultStride;
    uint32_t columns;
    uint32_t steps;  // over k, each with a Mmad of its own
};

// The structure, from as many 32-bit numbers in global memory.
template <typename T>
__aicore__ inline T ReadFields(GM_ADDR from)
{
    GlobalTensor<uint32_t> gm;
    gm.SetGlobalBuffer((__gm__ uint32_t*)from, sizeof(T) / sizeof(uint32_t));
    T fields;
    for (uint32_t i = 0; i < sizeof(T) / sizeof(uint32_t); ++i) {
        reinterpret_cast<uint32_t*>(&fields)[i] = gm.GetValue(i);
    }
    return fields;
}

__aicore__ inline uint32_t Blocks(uint32_t length, uint32_t of = kEdge) { return (length + of - 1) / of; }

// Rows of a matrix into L1, as fractals column by column.
template <typename T>
__aicore__ inline void CopyRows(const LocalTensor<T>& to, const GlobalTensor<T>& from, uint32_t rows, uint32_t length,
                                uint32_t stride, uint32_t pieceStride)
{
    Nd2NzParams params;
    params.ndNum = 1;
    params.nValue = rows;
    params.dValue = length;
    params.srcDValue = stride;
    params.dstNzC0Stride = pieceStride;
    params.dstNzNStride = 1;
    DataCopy(to, from, params);
}

// `count` fractals, `stride` fractals apart in L1.
template <typename T>
__aicore__ inline void LoadFractals(const LocalTensor<T>& to, const LocalTensor<T>& from, uint32_t count,
                                    uint32_t stride)
{
    LoadData2DParams params;
    params.repeatTimes = count;
    params.srcStride = stride;
    LoadData(to, from, params);
}

template <typename T>
class CubeBench {
public:
    using Result = typename Sum<T>::Type;

    __aicore__ inline CubeBench()
    {
        pipe_.InitBuffer(leftL1_, 64 * 1024);
        pipe_.InitBuffer(rightL1_, 256 * 1024);
        pipe_.InitBuffer(leftL0_, 64 * 1024);
        pipe_.InitBuffer(rightL0_, 64 * 1024);
        pipe_.InitBuffer(result_, 128 * 1024);
    }

    __aicore__ inline void Run(GM_ADDR left, GM_ADDR right, GM_ADDR result, const Product& product)
    {
        p_ = product;
        leftGm_.SetGlobalBuffer((__gm__ T*)left, p_.m * p_.leftStride);
        rightGm_.SetGlobalBuffer((__gm__ T*)right, p_.n * p_.rightStride);
        resultGm_.SetGlobalBuffer((__gm__ Result*)result, p_.m * p_.resultStride);
        for (uint32_t column = 0; column < p_.n; column += p_.columns) {
            const bool first = column == 0;
            const bool last = column + p_.columns >= p_.n;
            Tile(column, last ? p_.n - column : p_.columns, first, last);
        }
    }

private:
    __aicore__ inline void Tile(uint32_t column, uint32_t width, bool first, bool last)
    {
        if (!first) WaitFlag<HardEvent::MTE1_MTE2>(0);  // L1 free
        CopyIn(column, width);
        SetFlag<HardEvent::MTE2_MTE1>(0);
        WaitFlag<HardEvent::MTE2_MTE1>(0);  // L1 full
        if (!first) WaitFlag<HardEvent::M_MTE1>(3);  // L0 free; a TPipe takes 0 to 2
        Split(width);
        if (!last) SetFlag<HardEvent::MTE1_MTE2>(0);
        SetFlag<HardEvent::MTE1_M>(0);
        WaitFlag<HardEvent::MTE1_M>(0);  // L0 full
        if (!first) WaitFlag<HardEvent::FIX_M>(0);  // L0C free
        Multiply(width);
        if (!last) SetFlag<HardEvent::M_MTE1>(3);
        SetFlag<HardEvent::M_FIX>(0);
        WaitFlag<HardEvent::M_FIX>(0);  // L0C full
        CopyOut(column, width);
        if (!last) SetFlag<HardEvent::FIX_M>(0);
    }

    __aicore__ inline void CopyIn(uint32_t column, uint32_t width)
    {
        // one row of A is a vector for Mmad, and its pieces lie one behind the other
        if (column == 0) {
            const uint32_t pieceStride = p_.m == 1 ? 1 : Blocks(p_.m) * kEdge;
            CopyRows(leftL1_.template Get<T>(), leftGm_, p_.m, p_.k, p_.leftStride, pieceStride);
        }
        CopyRows(rightL1_.template Get<T>(), rightGm_[column * p_.rightStride], width, p_.k, p_.rightStride,
                 Blocks(width) * kEdge);
    }

    __aicore__ inline void Split(uint32_t width)
    {
        LocalTensor<T> left = leftL1_.template Get<T>(), left0 = leftL0_.template Get<T>();
        LocalTensor<T> right = rightL1_.template Get<T>(), right0 = rightL0_.template Get<T>();
        const uint32_t depth = Blocks(p_.k, kDepth<T>);
        if (p_.m == 1) {
            LoadFractals(left0, left, Blocks(depth), 1);
        } else {
            for (uint32_t row = 0; row < Blocks(p_.m); ++row) {
                LoadFractals(left0[row * depth * kElements<T>], left[row * kElements<T>], depth, Blocks(p_.m));
            }
        }
        for (uint32_t done = 0; done < depth * Blocks(width); done += 255) {
            const uint32_t rest = depth * Blocks(width) - done;
            LoadFractals(right0[done * kElements<T>], right[done * kElements<T>], rest < 255 ? rest : 255, 1);
        }
    }

    __aicore__ inline void Multiply(uint32_t width)
    {
        LocalTensor<Result> result = result_.template Get<Result>();
        for (uint32_t step = 0; step < p_.steps; ++step) {
            if (step > 0) PipeBarrier<PIPE_M>();
            MmadParams params;
            params.m = p_.m;
            params.n = width;
            params.k = p_.k / p_.steps;
            params.cmatrixInitVal = step == 0;
            const uint32_t blocks = step * Blocks(params.k, kDepth<T>);
            Mmad(result, leftL0_.template Get<T>()[blocks * (p_.m == 1 ? kDepth<T> : kElements<T>)],
                 rightL0_.template Get<T>()[blocks * Blocks(width) * kElements<T>], params);
        }
    }

    __aicore__ inline void CopyOut(uint32_t column, uint32_t width)
    {
        FixpipeParamsV220 params;
        params.nSize = width;
        params.mSize = p_.m;
        params.srcStride = Blocks(p_.m) * kEdge;
        params.dstStride = p_.resultStride;
        Fixpipe<Result, Result, CFG_ROW_MAJOR>(resultGm_[column], result_.template Get<Result>(), params);
    }

    TPipe pipe_;
    TBuf<TPosition::A1> leftL1_;
    TBuf<TPosition::B1> rightL1_;
    TBuf<TPosition::A2> leftL0_;
    TBuf<TPosition::B2> rightL0_;
    TBuf<TPosition::CO1> result_;
    GlobalTensor<T> leftGm_, rightGm_;
    GlobalTensor<Result> resultGm_;
    Product p_;
};

}  // namespace harness
