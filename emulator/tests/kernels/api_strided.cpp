// Calls with mask, repeats and strides: which lanes they touch. The destination starts as -1 everywhere.
#include "api_harness.h"

using namespace harness;

constexpr uint32_t kSize = 1024;

template <typename D, typename S, typename Call>
__aicore__ inline void Run(GM_ADDR x, GM_ADDR y, GM_ADDR z, Call call)
{
    Bench bench;
    LocalTensor<S> a = bench.Load<S>(x, kSize);
    LocalTensor<S> b = bench.Load<S>(y, kSize);
    LocalTensor<D> d = bench.Filled<D>(kSize, static_cast<D>(-1));
    call(d, a, b);
    bench.Store(z, d, kSize);
}

extern "C" {
// strides of the destination
__global__ __aicore__ void add_gaps(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, float>(x, y, z, [](LocalTensor<float>& d, LocalTensor<float>& a, LocalTensor<float>& b) {
        Add(d, a, b, 50, 4, BinaryRepeatParams(2, 1, 1, 17, 8, 9));
    });
}
// broadcast sources: a block within a repeat, a row over all repeats
__global__ __aicore__ void mul_broadcast(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, float>(x, y, z, [](LocalTensor<float>& d, LocalTensor<float>& a, LocalTensor<float>& b) {
        Mul(d, a, b, 64, 8, BinaryRepeatParams(1, 1, 0, 8, 8, 1));
    });
}
// a panel of 32 columns of rows that lie 4 blocks apart, four rows in a repeat
__global__ __aicore__ void cast_panel(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<half, int8_t>(x, y, z, [](LocalTensor<half>& d, LocalTensor<int8_t>& a, LocalTensor<int8_t>&) {
        Cast(d, a[32], RoundMode::CAST_NONE, 128, 1, UnaryRepeatParams(1, 4, 8, 16));
        Cast(d[128], a[544], RoundMode::CAST_NONE, 96, 1, UnaryRepeatParams(1, 4, 8, 16));
    });
}
__global__ __aicore__ void sub_bits(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<half, half>(x, y, z, [](LocalTensor<half>& d, LocalTensor<half>& a, LocalTensor<half>& b) {
        uint64_t mask[2] = {0x8000ffff00ff1235, 0xf00f};
        Sub(d, a, b, mask, 3, BinaryRepeatParams(1, 1, 2, 8, 8, 16));
    });
}
// half sources of a float destination: 64 lanes, four blocks of each source
__global__ __aicore__ void muladd_mixed(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, half>(x, y, z, [](LocalTensor<float>& d, LocalTensor<half>& a, LocalTensor<half>& b) {
        MulAddDst(d, a, b, 64, 2, BinaryRepeatParams(1, 0, 8, 8, 0, 32));
    });
}
__global__ __aicore__ void muladd_masked(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, half>(x, y, z, [](LocalTensor<float>& d, LocalTensor<half>& a, LocalTensor<half>& b) {
        uint64_t mask[2] = {0x00ff00ff0f0f8001, 0};
        MulAddDst(d, a, b, mask, 3, BinaryRepeatParams(1, 1, 1, 8, 4, 4));
    });
}
// accumulates rows: the documents allow dst to be src1 with a repeat stride of 0
__global__ __aicore__ void add_carry(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, float>(x, y, z, [](LocalTensor<float>& d, LocalTensor<float>& a, LocalTensor<float>&) {
        Add(d, a, d, 64, 6, BinaryRepeatParams(1, 1, 1, 0, 8, 0));
    });
}
__global__ __aicore__ void exp_in_place(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, float>(x, y, z, [](LocalTensor<float>& d, LocalTensor<float>& a, LocalTensor<float>&) {
        Adds(d, a, 0.0f, kSize);
        PipeBarrier<PIPE_V>();
        Abs(d, d, 64, 4, UnaryRepeatParams(1, 1, 8, 8));
    });
}
__global__ __aicore__ void axpy_gaps(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, half>(x, y, z, [](LocalTensor<float>& d, LocalTensor<half>& a, LocalTensor<half>&) {
        Axpy(d, a, static_cast<half>(2.5f), 33, 5, UnaryRepeatParams(1, 2, 10, 7));
    });
}
__global__ __aicore__ void cast_gaps(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, half>(x, y, z, [](LocalTensor<float>& d, LocalTensor<half>& a, LocalTensor<half>&) {
        Cast(d, a, RoundMode::CAST_NONE, 64, 3, UnaryRepeatParams(1, 1, 16, 4));
    });
}
// the mask register
__global__ __aicore__ void muls_register(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, float>(x, y, z, [](LocalTensor<float>& d, LocalTensor<float>& a, LocalTensor<float>&) {
        SetMaskNorm();
        SetVectorMask<float, MaskMode::NORMAL>(0, 0xff);
        Muls<float, false>(d, a, 2.0f, MASK_PLACEHOLDER, 4, UnaryRepeatParams(1, 1, 8, 8));
        SetMaskCount();
        SetVectorMask<float, MaskMode::COUNTER>(0, 70);
        Muls<float, false>(d[512], a[512], 2.0f, MASK_PLACEHOLDER, 1, UnaryRepeatParams(1, 1, 8, 8));
        SetMaskNorm();
        ResetMask();
    });
}
// a call with its own mask leaves that mask in the register
__global__ __aicore__ void mask_remains(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, float>(x, y, z, [](LocalTensor<float>& d, LocalTensor<float>& a, LocalTensor<float>&) {
        Muls(d, a, 2.0f, 5, 1, UnaryRepeatParams(1, 1, 8, 8));
        Muls<float, false>(d[64], a, 3.0f, MASK_PLACEHOLDER, 1, UnaryRepeatParams(1, 1, 8, 8));
        Muls(d[128], a, 2.0f, 3);
        Muls<float, false>(d[192], a, 3.0f, MASK_PLACEHOLDER, 1, UnaryRepeatParams(1, 1, 8, 8));
    });
}
__global__ __aicore__ void duplicate_gaps(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<half, half>(x, y, z, [](LocalTensor<half>& d, LocalTensor<half>&, LocalTensor<half>&) {
        Duplicate(d, static_cast<half>(4), 100, 2, 3, 24);
    });
}
__global__ __aicore__ void brcb_float(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, float>(x, y, z, [](LocalTensor<float>& d, LocalTensor<float>& a, LocalTensor<float>&) {
        Brcb(d, a, 3, BrcbRepeatParams(2, 20));
    });
}
__global__ __aicore__ void brcb_half(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<half, half>(x, y, z, [](LocalTensor<half>& d, LocalTensor<half>& a, LocalTensor<half>&) {
        Brcb(d, a, 2, BrcbRepeatParams(1, 8));
    });
}
__global__ __aicore__ void nothing_for_a_count_of_zero(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Run<float, float>(x, y, z, [](LocalTensor<float>& d, LocalTensor<float>& a, LocalTensor<float>& b) {
        Add(d, a, b, 0);
        Exp(d, a, 0);
        Duplicate(d, 1.0f, 0);
    });
}
}
