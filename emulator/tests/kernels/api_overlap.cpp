// Sources that share bytes with the destination, and the order of calls that consist of several instructions.
// A line marked "finds X" has exactly that finding; a kernel without a mark is the clean neighbour of the one before.
#include "api_floats.h"

using namespace harness;

extern "C" {
// ---- overlap -------------------------------------------------------------------------------------------------------
void overlap_partly(GM_ADDR, GM_ADDR)
{
    Floats t;
    Adds(t.d, t.d[8], 1.0f, 64);  // finds Overlap
}
void overlap_completely(GM_ADDR, GM_ADDR)
{
    Floats t;
    Adds(t.d, t.d, 1.0f, 640);
    PipeBarrier<PIPE_V>();
    Add(t.d, t.d, t.d, 64, 8, kBinary);
}
void overlap_other_strides(GM_ADDR, GM_ADDR)
{
    Floats t;
    Adds(t.d, t.d, 1.0f, 64, 1, UnaryRepeatParams(1, 2, 8, 8));  // finds Overlap
}
void overlap_later_repeat(GM_ADDR, GM_ADDR)
{
    Floats t;
    Adds(t.d[64], t.d, 1.0f, 64, 3, kUnary);  // finds Overlap
}
void overlap_earlier_repeat(GM_ADDR, GM_ADDR)
{
    Floats t;
    Adds(t.d, t.d[64], 1.0f, 64, 3, kUnary);
}
void overlap_carried_by_src1(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d, t.a, t.d, 64, 4, BinaryRepeatParams(1, 1, 1, 0, 8, 0));
}
void overlap_carried_by_src0(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d, t.d, t.a, 64, 4, BinaryRepeatParams(1, 1, 1, 0, 0, 8));  // finds Overlap
}
void overlap_carried_by_div(GM_ADDR, GM_ADDR)
{
    Floats t;
    Div(t.d, t.a, t.d, 64, 4, BinaryRepeatParams(1, 1, 1, 0, 8, 0));  // finds Overlap
}
void overlap_accumulated_by_muladd(GM_ADDR, GM_ADDR)
{
    Floats t;
    MulAddDst(t.d, t.a, t.b, 64, 2, BinaryRepeatParams(1, 1, 1, 0, 8, 8));  // finds Overlap
}
void overlap_muladd_source(GM_ADDR, GM_ADDR)
{
    Floats t;
    MulAddDst(t.d, t.hd, t.ha, 64, 1, BinaryRepeatParams(1, 1, 1, 8, 4, 4));  // finds Overlap
}
void overlap_masked_apart(GM_ADDR, GM_ADDR)
{
    Floats t;
    uint64_t even[2] = {0x00ff00ff00ff00ff, 0};
    Adds(t.d[8], t.d, 1.0f, even, 2, UnaryRepeatParams(1, 1, 16, 16));
}
void overlap_widening_cast(GM_ADDR, GM_ADDR)
{
    Floats t;
    Cast(t.d, t.hd, RoundMode::CAST_NONE, 64);  // finds Overlap
}
void overlap_narrowing_cast(GM_ADDR, GM_ADDR)
{
    Floats t;
    Cast(t.hd, t.d, RoundMode::CAST_RINT, 640);
}
void overlap_brcb(GM_ADDR, GM_ADDR)
{
    Floats t;
    Brcb(t.d, t.d[8], 1, BrcbRepeatParams(1, 8));  // finds Overlap
}
void overlap_compare(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits, t.d, 1.0f, CMPMODE::GT, 64);  // finds Overlap
}
void overlap_select_mask(GM_ADDR, GM_ADDR)
{
    Floats t;
    Select(t.d, t.bits, t.a, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 64);  // finds Overlap
}
void overlap_reduction(GM_ADDR, GM_ADDR)
{
    Floats t;
    BlockReduceSum(t.d, t.d, 2, 64, 1, 1, 8);  // finds Overlap
}
void overlap_gather(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d[8], t.d, t.all, true, 64, kGather, t.count);  // finds Overlap
}
void overlap_gather_pattern(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.b, t.a, t.words, true, 64, kGather, t.count);  // finds Overlap
}
void overlap_gather_offsets(GM_ADDR, GM_ADDR)
{
    Floats t;
    Duplicate(t.ints, 0, 64);
    PipeBarrier<PIPE_V>();
    Gather(t.b, t.a, t.words, 0, 64);  // finds Overlap
}
void overlap_copy(GM_ADDR, GM_ADDR)
{
    Floats t;
    DataCopy(t.d[8], t.d, 16);  // finds Overlap
}
// ---- order of the calls that consist of several instructions -------------------------------------------------------
void order_index_over_a_tensor_in_use(GM_ADDR, GM_ADDR)
{
    Floats t;
    Exp(t.d, t.a, 64);
    CreateVecIndex(t.d, 0.0f, 64);  // finds WriteAfterWrite
}
void order_index_after_a_flag(GM_ADDR, GM_ADDR)
{
    Floats t;
    Exp(t.d, t.a, 64);
    SetFlag<HardEvent::V_S>(0);
    WaitFlag<HardEvent::V_S>(0);
    CreateVecIndex(t.d, 0.0f, 64);
}
void order_index_read_at_once(GM_ADDR, GM_ADDR)
{
    Floats t;
    CreateVecIndex(t.d, 0.0f, 300);
    Exp(t.b, t.d, 300);  // finds ReadAfterWrite
}
void order_index_read_after_a_barrier(GM_ADDR, GM_ADDR)
{
    Floats t;
    CreateVecIndex(t.d, 0.0f, 300);
    PipeBarrier<PIPE_V>();
    Exp(t.b, t.d, 300);
}
}
