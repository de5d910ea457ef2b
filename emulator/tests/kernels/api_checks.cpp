// Alignment and bounds of operands.
// A line marked "finds X" has exactly that finding; a kernel without a mark is the clean neighbour of the one before.
#include "api_floats.h"

using namespace harness;

extern "C" {
// ---- alignment -----------------------------------------------------------------------------------------------------
void aligned_destination(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d[1], t.a, t.b, 64);  // finds Alignment
}
void aligned_source(GM_ADDR, GM_ADDR)
{
    Floats t;
    Exp(t.d, t.a[4], 64);  // finds Alignment
}
void aligned_clean(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d[8], t.a[16], t.b[24], 64);
}
void aligned_copy_in(GM_ADDR x, GM_ADDR)
{
    Floats t;
    GlobalTensor<float> source;
    source.SetGlobalBuffer((__gm__ float*)x, 64);
    DataCopy(t.d[4], source, 8);  // finds Alignment
}
void aligned_copy_out(GM_ADDR, GM_ADDR z)
{
    Floats t;
    GlobalTensor<float> target;
    target.SetGlobalBuffer((__gm__ float*)z, 64);
    DataCopyPad(target, t.a[2], DataCopyExtParams(1, 32, 0, 0, 0));  // finds Alignment
}
void aligned_copy_any_gm_address(GM_ADDR x, GM_ADDR z)
{
    Floats t;
    GlobalTensor<float> source;
    source.SetGlobalBuffer((__gm__ float*)(x + 4), 64);
    GlobalTensor<float> target;
    target.SetGlobalBuffer((__gm__ float*)(z + 12), 64);
    DataCopy(t.d, source, 8);
    DataCopyPad(target, t.a, DataCopyExtParams(1, 20, 0, 0, 0));
}
void aligned_select_mask(GM_ADDR, GM_ADDR)
{
    Floats t;
    Select(t.d, t.words[2], t.a, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 64);  // finds Alignment
}
void aligned_compare(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits[8], t.a, 1.0f, CMPMODE::LT, 64);  // finds Alignment
}
void aligned_pattern(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.words[2], true, 64, kGather, t.count);  // finds Alignment
}
void aligned_gather_destination(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d[3], t.a, t.all, true, 64, kGather, t.count);  // finds Alignment
}
void aligned_brcb(GM_ADDR, GM_ADDR)
{
    Floats t;
    Brcb(t.d, t.a[2], 1, BrcbRepeatParams(1, 8));  // finds Alignment
}
void aligned_block_reduce(GM_ADDR, GM_ADDR)
{
    Floats t;
    BlockReduceSum(t.d[4], t.a, 1, 64, 1, 1, 8);  // finds Alignment
}
void aligned_block_reduce_half(GM_ADDR, GM_ADDR)
{
    Floats t;
    BlockReduceSum(t.hd[4], t.ha, 1, 128, 1, 1, 8);  // finds Alignment
}
void aligned_block_reduce_half_clean(GM_ADDR, GM_ADDR)
{
    Floats t;
    BlockReduceSum(t.hd[8], t.ha, 1, 128, 1, 1, 8);
}
void aligned_whole_reduce_pair(GM_ADDR, GM_ADDR)
{
    Floats t;
    WholeReduceMax(t.d[1], t.a, 64, 1, 1, 1, 8);  // finds Alignment
}
void aligned_whole_reduce_value(GM_ADDR, GM_ADDR)
{
    Floats t;
    WholeReduceMax(t.d[1], t.a, 64, 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
    WholeReduceSum(t.d[2], t.a, 64, 1, 1, 1, 8);
}
void aligned_part_of_a_buffer(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 256);
    LocalTensor<float> tensor = buffer.GetWithOffset<float>(8, 16);  // finds Alignment
    tensor.SetValue(0, 1.0f);
}
void aligned_gather_offset(GM_ADDR, GM_ADDR)
{
    Floats t;
    Duplicate(t.ints, 3, 64);
    PipeBarrier<PIPE_V>();
    Gather(t.d, t.a, t.words, 0, 64);  // finds Alignment
}
// ---- bounds of each tensor -----------------------------------------------------------------------------------------
void bounds_count(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d, t.a, t.b[8], kFloats);  // finds LocalBounds
}
void bounds_strides(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d, t.a, t.b, 64, 9, BinaryRepeatParams(1, 1, 1, 8, 16, 8));  // finds LocalBounds
}
void bounds_strides_clean(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d, t.a, t.b, 64, 8, BinaryRepeatParams(1, 1, 1, 8, 16, 8));
}
// four blocks of int8 rows, of which the last ends past the buffer
void bounds_of_narrow_rows(GM_ADDR, GM_ADDR)
{
    Floats t;
    LocalTensor<int8_t> rows = t.a.ReinterpretCast<int8_t>();
    Cast(t.hd, rows[3104], RoundMode::CAST_NONE, 128, 1, UnaryRepeatParams(1, 11, 8, 0));  // finds LocalBounds
}
void bounds_of_narrow_rows_clean(GM_ADDR, GM_ADDR)
{
    Floats t;
    LocalTensor<int8_t> rows = t.a.ReinterpretCast<int8_t>();
    Cast(t.hd, rows[3008], RoundMode::CAST_NONE, 128, 1, UnaryRepeatParams(1, 11, 8, 0));
}
void aligned_narrow_rows(GM_ADDR, GM_ADDR)
{
    Floats t;
    LocalTensor<int8_t> rows = t.a.ReinterpretCast<int8_t>();
    Cast(t.hd, rows[16], RoundMode::CAST_NONE, 128);  // finds Alignment
}
// the last lanes of the last repeat would lie outside, but the mask leaves them out
void bounds_of_active_lanes_only(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d[968], t.a, t.b, 56, 1, kBinary);
}
void bounds_block_stride(GM_ADDR, GM_ADDR)
{
    Floats t;
    Exp(t.d, t.a[512], 64, 1, UnaryRepeatParams(1, 10, 8, 8));  // finds LocalBounds
}
// the last repeat has few lanes and ends earlier than the one before it
void bounds_of_a_repeat_before_the_last(GM_ADDR, GM_ADDR)
{
    Floats t;
    SetMaskCount();
    SetVectorMask<float, MaskMode::COUNTER>(0, 72);
    Muls<float, false>(t.d, t.a[512], 1.0f, MASK_PLACEHOLDER, 1, UnaryRepeatParams(1, 10, 8, 1));  // finds LocalBounds
}
void bounds_copy(GM_ADDR x, GM_ADDR)
{
    Floats t;
    GlobalTensor<float> source;
    source.SetGlobalBuffer((__gm__ float*)x, 1024);
    DataCopy(t.d[1016], source, 16);  // finds LocalBounds
}
void bounds_padding(GM_ADDR x, GM_ADDR)
{
    Floats t;
    GlobalTensor<float> source;
    source.SetGlobalBuffer((__gm__ float*)x, 1024);
    DataCopyPad(t.d[1016], source, {1, 28, 0, 0, 0}, {true, 2, 0, 0});  // finds LocalBounds
}
void bounds_compare_result(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits[4064], t.a, 1.0f, CMPMODE::GT, 512);  // finds LocalBounds
}
void bounds_gather_result(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d[1016], t.a, t.all, true, 16, kGather, t.count);  // finds LocalBounds
}
void bounds_gather_pattern(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.words[1016], true, 320, kGather, t.count);  // finds LocalBounds
}
void bounds_reduce_result(GM_ADDR, GM_ADDR)
{
    Floats t;
    BlockReduceSum(t.d[1016], t.a, 2, 64, 1, 1, 8);  // finds LocalBounds
}
void bounds_brcb(GM_ADDR, GM_ADDR)
{
    Floats t;
    Brcb(t.d[960], t.a, 1, BrcbRepeatParams(2, 8));  // finds LocalBounds
}
void bounds_gather_source(GM_ADDR, GM_ADDR)
{
    Floats t;
    Duplicate(t.ints, 4096, 64);
    PipeBarrier<PIPE_V>();
    Gather(t.d, t.a, t.words, 0, 64);  // finds LocalBounds
}
void bounds_index_operator(GM_ADDR, GM_ADDR)
{
    Floats t;
    Exp(t.d, t.a[1025], 8);  // finds LocalBounds
}
void bounds_scalar(GM_ADDR, GM_ADDR)
{
    Floats t;
    t.d.SetValue(1024, 1.0f);  // finds LocalBounds
}
void bounds_global_index_operator(GM_ADDR x, GM_ADDR)
{
    Floats t;
    GlobalTensor<float> source;
    source.SetGlobalBuffer((__gm__ float*)x, 64);
    DataCopy(t.d, source[72], 8);  // finds GmBounds
}
void bounds_global(GM_ADDR x, GM_ADDR)
{
    Floats t;
    GlobalTensor<float> source;
    source.SetGlobalBuffer((__gm__ float*)x, 64);
    DataCopy(t.d, source[60], 8);  // finds GmBounds
}
void bounds_part_of_a_buffer(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 256);
    LocalTensor<float> tensor = buffer.Get<float>(65);  // finds LocalBounds
    tensor.SetValue(0, 1.0f);
}
void bounds_part_of_a_buffer_with_offset(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 256);
    LocalTensor<float> tensor = buffer.GetWithOffset<float>(8, 232);  // finds LocalBounds
    tensor.SetValue(0, 1.0f);
}
void bounds_no_buffer(GM_ADDR, GM_ADDR)
{
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<float> tensor = buffer.Get<float>();  // finds LocalBounds
    tensor.SetValue(0, 1.0f);
}
}
