// Single vector instructions, for their modelled cycles. Nothing is fenced: each kernel has one such instruction.
#include "kernel_operator.h"

using namespace AscendC;

// One buffer whose tensors lie at chosen offsets, so that a kernel decides which banks they are on.
template <typename Call>
__aicore__ inline void On(Call call)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 180 * 1024);
    call(buffer);
}

template <typename T>
__aicore__ inline LocalTensor<T> At(TBuf<TPosition::VECCALC>& buffer, uint32_t kib)
{
    return buffer.GetWithOffset<T>(20 * 1024 / sizeof(T), kib * 1024);
}

template <typename Call>
__aicore__ inline void From(GM_ADDR x, Call call)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 16 * 1024);
    GlobalTensor<half> global;
    global.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(x));
    call(buffer.Get<half>(), global);
}

#define COPY_KERNEL(name, statement)                                    \
    __global__ __aicore__ void name(GM_ADDR x)                          \
    {                                                                   \
        From(x, [](const LocalTensor<half>& d, GlobalTensor<half>& g) { \
            const DataCopyPadExtParams<half> noPad{false, 0, 0, 0};     \
            statement;                                                  \
            (void)noPad;                                                \
        });                                                             \
    }

#define COST_KERNEL(name, statement)                                                             \
    __global__ __aicore__ void name()                                                            \
    {                                                                                            \
        On([](TBuf<TPosition::VECCALC>& b) {                                                     \
            LocalTensor<float> d = At<float>(b, 128), x = At<float>(b, 0), y = At<float>(b, 64); \
            LocalTensor<half> hd = At<half>(b, 128), hx = At<half>(b, 0), hy = At<half>(b, 64);  \
            LocalTensor<uint8_t> bits = At<uint8_t>(b, 152);                                     \
            LocalTensor<uint32_t> words = At<uint32_t>(b, 152);                                  \
            LocalTensor<int64_t> longs = At<int64_t>(b, 128);                                    \
            uint64_t n = 0;                                                                      \
            statement;                                                                           \
            (void)d, (void)x, (void)y, (void)hd, (void)hx, (void)hy;                             \
            (void)bits, (void)words, (void)longs, (void)n;                                       \
        });                                                                                      \
    }

extern "C" {
COST_KERNEL(add_float, Add(d, x, y, 4096))
COST_KERNEL(add_float_tail, Add(d, x, y, 4097))
COST_KERNEL(add_half, Add(hd, hx, hy, 4096))
COST_KERNEL(add_few_lanes, Add(d, x, y, 1, 64, BinaryRepeatParams(1, 1, 1, 8, 8, 8)))
COST_KERNEL(exp_float, Exp(d, x, 4096))
COST_KERNEL(exp_half, Exp(hd, hx, 4096))
COST_KERNEL(div_float, Div(d, x, y, 4096))
COST_KERNEL(muladd_half, MulAddDst(hd, hx, hy, 4096))
COST_KERNEL(muladd_float, MulAddDst(d, x, y, 4096))
COST_KERNEL(muladd_mixed, MulAddDst(d, hx, hy, 4096))
COST_KERNEL(axpy_mixed, Axpy(d, hx, static_cast<half>(2), 4096))
COST_KERNEL(compare_float, CompareScalar(bits, x, 1.0f, CMPMODE::GT, 4096))
COST_KERNEL(compare_half, CompareScalar(bits, hx, static_cast<half>(1), CMPMODE::GT, 4096))
COST_KERNEL(select_float, Select(d, bits, x, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 4096))
COST_KERNEL(gather_mask_float, GatherMask(d, x, words, true, 4096, GatherMaskParams(1, 1, 8, 0), n))
COST_KERNEL(cast_half_float, Cast(d, hx, RoundMode::CAST_NONE, 4096))
COST_KERNEL(cast_float_int64, Cast(longs, x, RoundMode::CAST_RINT, 2048))
COST_KERNEL(block_reduce_float, BlockReduceSum(d, x, 64, 64, 1, 1, 8))
COST_KERNEL(block_reduce_half, BlockReduceSum(hd, hx, 32, 128, 1, 1, 8))
COST_KERNEL(pair_reduce_float, PairReduceSum(d, x, 64, 64, 1, 1, 8))
COST_KERNEL(whole_reduce_float, WholeReduceSum(d, x, 64, 64, 1, 1, 8))
COST_KERNEL(duplicate_float, Duplicate(d, 1.0f, 4096))
COST_KERNEL(brcb_float, Brcb(d, x, 64, BrcbRepeatParams(1, 8)))
COST_KERNEL(gather_float, Duplicate(words, 0u, 4096); PipeBarrier<PIPE_V>(); Gather(d, x, words, 0, 4096))
COST_KERNEL(copy_inside, DataCopy(d, x, 4096))
COST_KERNEL(add_scalar, Adds(d, x, 1.0f, 4096))
// bank conflicts: the eight cases of asc-devkit's example bank_conflict_ub, at its addresses
#define VENDOR_KERNEL(name, source, destination, sourceStrides)         \
    COST_KERNEL(name, Add(destination, At<float>(b, 0), source, 64, 64, \
                          BinaryRepeatParams(1, sourceStrides[0], 1, 8, sourceStrides[1], 8)))
constexpr uint8_t kInOrder[2] = {1, 8}, kBlockByBlock[2] = {0, 1}, kBlockOfEach[2] = {0, 8};
VENDOR_KERNEL(vendor_1, At<float>(b, 64)[64], At<float>(b, 128), kInOrder)
VENDOR_KERNEL(vendor_2, At<float>(b, 16), At<float>(b, 64), kInOrder)
VENDOR_KERNEL(vendor_3, At<float>(b, 64), At<float>(b, 80)[64], kInOrder)
VENDOR_KERNEL(vendor_4, At<float>(b, 64)[64], At<float>(b, 16), kInOrder)
VENDOR_KERNEL(vendor_5, At<float>(b, 64)[64], At<float>(b, 16)[8], kInOrder)
VENDOR_KERNEL(vendor_6, At<float>(b, 64)[64], At<float>(b, 64)[64], kInOrder)
VENDOR_KERNEL(vendor_7, At<float>(b, 64)[64], At<float>(b, 64)[64], kBlockByBlock)
VENDOR_KERNEL(vendor_8, At<float>(b, 64)[64], At<float>(b, 64)[64], kBlockOfEach)
// a source whose blocks lie 8, 16 and 32 apart; one that is read once; reads of all banks of a group; one operand alone
COST_KERNEL(conflict_blocks_8, Adds(d, x, 1.0f, 64, 16, UnaryRepeatParams(1, 8, 8, 1)))
COST_KERNEL(conflict_blocks_16, Adds(d, x, 1.0f, 64, 16, UnaryRepeatParams(1, 16, 8, 1)))
COST_KERNEL(conflict_three_banks_of_a_group, Add(At<float>(b, 144)[64], At<float>(b, 62), At<float>(b, 128), 64, 1,
                                                 BinaryRepeatParams(1, 16, 0, 8, 8, 8)))
COST_KERNEL(conflict_row_layout, MulAddDst(d, hx, hy, 64, 16, BinaryRepeatParams(1, 0, 8, 8, 0, 32)))
COST_KERNEL(no_conflict_read_once, Mul(d, x, y, 64, 64, BinaryRepeatParams(1, 1, 0, 8, 8, 0)))
COST_KERNEL(no_conflict_in_place, Adds(x, x, 1.0f, 4096))
// copies of rows, in bytes: how many, how long, the gap between them
COPY_KERNEL(pair_of_rows, DataCopyPad(d, g, DataCopyExtParams(2, 256, 768, 0, 0), noPad))
COPY_KERNEL(rows_together, DataCopyPad(d, g, DataCopyExtParams(2, 256, 0, 0, 0), noPad))
COPY_KERNEL(single_row, DataCopyPad(d, g, DataCopyExtParams(1, 256, 0, 0, 0), noPad))
COPY_KERNEL(rows_of_a_line, DataCopyPad(d, g, DataCopyExtParams(2, 512, 512, 0, 0), noPad))
COPY_KERNEL(rows_by_blocks, DataCopy(d, g, DataCopyParams(3, 4, 12, 0)))
COPY_KERNEL(plain_count, DataCopy(d, g, 1024))
COPY_KERNEL(rows_past_the_l2, g.SetL2CacheHint(CacheMode::CACHE_MODE_DISABLE);
            DataCopyPad(d, g, DataCopyExtParams(128, 128, 896, 0, 0), noPad))
}
