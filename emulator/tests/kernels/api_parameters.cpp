// Arguments outside their documented ranges.
// A line marked "finds X" has exactly that finding; a kernel without a mark is the clean neighbour of the one before.
#include "api_floats.h"

using namespace harness;

extern "C" {
// ---- masks, repeats, counts, strides -------------------------------------------------------------------------------
void mask_of_zero(GM_ADDR, GM_ADDR)
{
    Floats t;
    uint64_t mask = 0;
    Add(t.d, t.a, t.b, mask, 1, kBinary);  // finds Parameter
}
void mask_too_large(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d, t.a, t.b, 65, 1, kBinary);  // finds Parameter
}
void mask_of_mixed_types(GM_ADDR, GM_ADDR)
{
    Floats t;
    MulAddDst(t.d, t.ha, t.hb, 128, 1, BinaryRepeatParams(1, 1, 1, 8, 4, 4));  // finds Parameter
}
void mask_of_half(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.hd, t.ha, t.hb, 128, 1, kBinary);
}
void mask_second_word(GM_ADDR, GM_ADDR)
{
    Floats t;
    uint64_t mask[2] = {1, 1};
    Exp(t.d, t.a, mask, 1, kUnary);  // finds Parameter
}
void mask_without_lanes(GM_ADDR, GM_ADDR)
{
    Floats t;
    uint64_t mask[2] = {0, 0};
    Exp(t.d, t.a, mask, 1, kUnary);  // finds Parameter
}
void mask_negative(GM_ADDR, GM_ADDR)
{
    Floats t;
    WholeReduceSum(t.d, t.a, -1, 1, 1, 1, 8);  // finds Parameter
}
void mask_in_counter_mode(GM_ADDR, GM_ADDR)
{
    Floats t;
    SetMaskCount();
    Add(t.d, t.a, t.b, 64, 1, kBinary);  // finds Parameter
}
void repeats_of_zero(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d, t.a, t.b, 64, 0, kBinary);  // finds Parameter
}
void repeats_that_wrap(GM_ADDR, GM_ADDR)
{
    Floats t;
    const uint32_t repeats = 256;
    Duplicate(t.d, 0.0f, 64, static_cast<uint8_t>(repeats), 1, 0);  // finds Parameter
}
void repeats_of_a_reduction(GM_ADDR, GM_ADDR)
{
    Floats t;
    BlockReduceSum(t.d, t.a, 256, 64, 1, 1, 0);  // finds Parameter
}
void repeats_of_a_reduction_clean(GM_ADDR, GM_ADDR)
{
    Floats t;
    BlockReduceSum(t.d, t.a, 128, 64, 1, 1, 0);
}
void repeats_of_brcb(GM_ADDR, GM_ADDR)
{
    Floats t;
    Brcb(t.d, t.a, 0, BrcbRepeatParams(1, 8));  // finds Parameter
}
void repeats_of_compare(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits, t.a, 1.0f, CMPMODE::LT, 64, 0, kUnary);  // finds Parameter
}
void count_negative(GM_ADDR, GM_ADDR)
{
    Floats t;
    Exp(t.d, t.a, -1);  // finds Parameter
}
void stride_of_destination_blocks(GM_ADDR, GM_ADDR)
{
    Floats t;
    Add(t.d, t.a, t.b, 64, 1, BinaryRepeatParams(0, 1, 1, 8, 8, 8));  // finds Parameter
}
void stride_of_brcb(GM_ADDR, GM_ADDR)
{
    Floats t;
    Brcb(t.d, t.a, 1, BrcbRepeatParams(0, 8));  // finds Parameter
}
void stride_negative(GM_ADDR, GM_ADDR)
{
    Floats t;
    BlockReduceSum(t.d, t.a, 1, 64, -1, 1, 8);  // finds Parameter
}
// ---- compare, select, gather, cast ---------------------------------------------------------------------------------
void compare_count(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits, t.a, 1.0f, CMPMODE::GT, 100);  // finds Parameter
}
void compare_count_half(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits, t.ha, static_cast<half>(1), CMPMODE::GT, 64);  // finds Parameter
}
void compare_count_clean(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits, t.a, 1.0f, CMPMODE::GT, 128);
}
void compare_integers(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits, t.ints, 1, CMPMODE::LT, 64);  // finds Parameter
}
void compare_integers_clean(GM_ADDR, GM_ADDR)
{
    Floats t;
    CompareScalar(t.bits, t.ints, 1, CMPMODE::EQ, 64);
}
void select_scalar_mode_with_tensor(GM_ADDR, GM_ADDR)
{
    Floats t;
    Select(t.d, t.words, t.a, t.a, SELMODE::VSEL_TENSOR_SCALAR_MODE, 64, 1, kBinary);  // finds Parameter
}
void select_tensor_mode_with_scalar(GM_ADDR, GM_ADDR)
{
    Floats t;
    Select(t.d, t.words, t.a, 1.0f, SELMODE::VSEL_TENSOR_TENSOR_MODE, 64);  // finds Parameter
}
void gather_repeats(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.words, true, 64, GatherMaskParams(1, 0, 8, 0), t.count);  // finds Parameter
}
void gather_mask_of_zero(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.words, true, 0, kGather, t.count);  // finds Parameter
}
void gather_mask_without_effect_in_normal_mode(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.words, false, 64, kGather, t.count);
}
void gather_long_with_block_stride(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.words, true, 100, GatherMaskParams(2, 1, 8, 0), t.count);  // finds Unsupported
}
void gather_count_too_early(GM_ADDR, GM_ADDR)
{
    Floats t;
    GatherMask(t.d, t.a, t.words, true, 64, kGather, t.count);
    t.count = static_cast<uint64_t>(GetGatherMaskRemainCount());  // finds StaleRegister
}
void cast_mode(GM_ADDR, GM_ADDR)
{
    Floats t;
    Cast(t.ints, t.a, RoundMode::CAST_NONE, 64);  // finds Parameter
}
void cast_mode_of_an_exact_pair(GM_ADDR, GM_ADDR)
{
    Floats t;
    Cast(t.d, t.ha, RoundMode::CAST_RINT, 64);  // finds Parameter
}
void cast_mode_clean(GM_ADDR, GM_ADDR)
{
    Floats t;
    Cast(t.ints, t.a, RoundMode::CAST_RINT, 64);
    Cast(t.d, t.ha, RoundMode::CAST_NONE, 64);
}
}
