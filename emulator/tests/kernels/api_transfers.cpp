// Arguments of data movement, and bytes that a call leaves undefined.
// A line marked "finds X" has exactly that finding; a kernel without a mark is the clean neighbour of the one before.
#include "api_floats.h"

using namespace harness;

constexpr uint32_t kGap = 1u << 31;

extern "C" {
// ---- data movement -------------------------------------------------------------------------------------------------
void copy_count(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopy(t.d, t.x, 12);  // finds Parameter
}
void copy_out_count(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopy(t.z, t.a, 12);  // finds Parameter
}
void copy_no_blocks(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopy(t.d, t.x, DataCopyParams(0, 1, 0, 0));  // finds Parameter
}
void copy_empty_blocks(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopy(t.z, t.d, DataCopyParams(1, 0, 0, 0));  // finds Parameter
}
void copy_too_many_blocks(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopy(t.d, t.x, DataCopyParams(4096, 1, 0, 0));  // finds Parameter
}
void pad_no_blocks(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.d, t.x, {0, 32, 0, 0, 0}, {false, 0, 0, 0});  // finds Parameter
}
void pad_too_many_blocks(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.z, t.d, DataCopyExtParams(4096, 4, 0, 0, 0));  // finds Parameter
}
void pad_block_too_long(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.z, t.d, DataCopyExtParams(1, 2097152, 0, 0, 0));  // finds Parameter
}
void pad_block_of_no_whole_elements(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.z, t.d, DataCopyExtParams(1, 6, 0, 0, 0));  // finds Parameter
}
void pad_gap_of_2_gib(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    GlobalTensor<float> far;
    far.SetGlobalBuffer((__gm__ float*)x);
    DataCopyPad(t.d, far, {2, 32, kGap, 0, 0}, {false, 0, 0, 0});  // finds Parameter GmBounds
}
void pad_gap_of_less(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    GlobalTensor<float> far;
    far.SetGlobalBuffer((__gm__ float*)x);
    DataCopyPad(t.d, far, {2, 32, kGap - 1, 0, 0}, {false, 0, 0, 0});  // finds GmBounds
}
void pad_too_wide(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.d, t.x, {1, 32, 0, 0, 0}, {true, 0, 9, 0});  // finds Parameter
}
void pad_wide_clean(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.d, t.x, {1, 32, 0, 0, 0}, {true, 8, 8, 0});
}
void pad_value_of_64_bits(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    GlobalTensor<int64_t> source;
    source.SetGlobalBuffer((__gm__ int64_t*)x, 64);
    DataCopyPad(t.d.ReinterpretCast<int64_t>(), source, {1, 24, 0, 0, 0}, {true, 0, 1, 1});  // finds Parameter
}
void pad_bytes_are_undefined(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.d, t.x, {1, 20, 0, 0, 0}, {false, 0, 0, 0});
    PipeBarrier<PIPE_ALL>();
    Exp(t.b, t.d, 8);  // finds Uninitialised
}
void pad_bytes_are_defined(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.d, t.x, {1, 20, 0, 0, 0}, {true, 0, 3, 0});
    PipeBarrier<PIPE_ALL>();
    Exp(t.b, t.d, 8);
}
void pad_dummy_is_undefined(GM_ADDR x, GM_ADDR z)
{
    Copies t(x, z);
    DataCopyPad(t.d, t.x, {1, 20, 0, 0, 0}, {true, 0, 0, 0});
    PipeBarrier<PIPE_ALL>();
    Exp(t.b, t.d, 8);  // finds Uninitialised
}
void gather_rest_of_the_block_is_undefined(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.all, true, 13, kGather, t.count);
    PipeBarrier<PIPE_ALL>();
    Exp(t.b, t.d, 13);
    Exp(t.a, t.d, 14);  // finds Uninitialised
}
void gather_what_lies_behind_stays(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.all, true, 13, kGather, t.count);
    PipeBarrier<PIPE_ALL>();
    Exp(t.b, t.d[16], 13);
}
}
