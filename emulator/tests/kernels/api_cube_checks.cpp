// What the calls of the cube check: where operands lie, how they are aligned, what has been written.
// A line marked "finds X" has exactly that finding; a kernel without a mark is the clean neighbour of the one before.
#include "api_cube_tensors.h"

using namespace harness;

const LoadData2DParams kOneFractal(0, 1, 1, 0, 0, false, 0);
const MmadParams kOneProduct(16, 16, 16, 0, false, true);
const FixpipeParamsV220 kOneResult(16, 16, 16, 16, false);

extern "C" {
// ---- memories ------------------------------------------------------------------------------------------------------
void place_nd2nz(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.a, t.x, Nd2NzParams(1, 16, 16, 0, 16, 16, 1, 0));  // finds Parameter
}
void place_copy(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.b, t.x, 256);  // finds Parameter
}
void place_copy_pad(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopyPad(t.l1, t.x, DataCopyExtParams(1, 32, 0, 0, 0), DataCopyPadExtParams<half>());  // finds Parameter
}
void place_copy_out(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.z, t.c, 256);  // finds Unsupported
}
void place_load_data_target(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LoadData(t.l1, t.l1, kOneFractal);  // finds Parameter
}
void place_load_data_source(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LoadData(t.b, t.a, kOneFractal);  // finds Parameter
}
void place_mmad_result(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.l1.ReinterpretCast<float>(), t.a, t.b, kOneProduct);  // finds Parameter
}
void place_mmad_left(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.l1, t.b, kOneProduct);  // finds Parameter
}
void place_mmad_right(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.a, kOneProduct);  // finds Parameter
}
void place_fixpipe(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Fixpipe(t.z, t.a.ReinterpretCast<float>(), kOneResult);  // finds Parameter
}
void place_get_value(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    t.z.SetValue(0, t.c.GetValue(0));  // finds Parameter UnflushedWrite
}
void place_set_value(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    t.l1.SetValue(0, static_cast<half>(1));  // finds Parameter
}
void place_mmad_on_a_vector_core(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 4096);
    LocalTensor<half> ub = buffer.Get<half>();
    Mmad(ub.ReinterpretCast<float>(), ub, ub, kOneProduct);  // finds Parameter
}
void place_buffer_on_a_vector_core(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TBuf<TPosition::A1> buffer;
    pipe.InitBuffer(buffer, 4096);  // finds Unsupported
}
void place_buffer_on_a_cube_core(GM_ADDR, GM_ADDR)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 4096);  // finds Unsupported
}
void place_vector_instruction(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Duplicate(t.c, 1.0f, 64);  // finds Unsupported
}
void place_too_much(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    TBuf<TPosition::A2> more;
    t.pipe.InitBuffer(more, 61 * 1024);  // finds LocalCapacity
}
void place_all(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    TBuf<TPosition::A2> more;
    t.pipe.InitBuffer(more, 60 * 1024);
}
// ---- alignment -----------------------------------------------------------------------------------------------------
void aligned_copy(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1[8], t.x, 256);  // finds Alignment
}
void aligned_nd2nz(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1[8], t.x, Nd2NzParams(1, 16, 16, 0, 16, 16, 1, 0));  // finds Alignment
}
void aligned_nd2nz_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1[16], t.x[1], Nd2NzParams(1, 16, 16, 0, 16, 16, 1, 0));
}
void aligned_load_data_target(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LoadData(t.a[16], t.l1, kOneFractal);  // finds Alignment
}
void aligned_load_data_source(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LoadData(t.a, t.l1[8], kOneFractal);  // finds Alignment
}
void aligned_load_data_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LoadData(t.a[256], t.l1[16], kOneFractal);
}
void aligned_mmad_result(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c[128], t.a, t.b, kOneProduct);  // finds Alignment
}
void aligned_mmad_left(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a[128], t.b, kOneProduct);  // finds Alignment
}
void aligned_mmad_right(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b[128], kOneProduct);  // finds Alignment
}
void aligned_mmad_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c[256], t.a[256], t.b[256], kOneProduct);
}
void aligned_fixpipe(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Fixpipe(t.z, t.c[8], kOneResult);  // finds Alignment
}
void aligned_fixpipe_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Fixpipe(t.z[1], t.c[16], kOneResult);
}
// ---- bounds and overlap --------------------------------------------------------------------------------------------
void bounds_nd2nz(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1, t.x, Nd2NzParams(1, 16, 16, 0, 16, 16, 9, 0));  // finds LocalBounds
}
void bounds_nd2nz_source(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1, t.x, Nd2NzParams(1, 16, 16, 0, 136, 16, 1, 0));  // finds GmBounds
}
void bounds_nd2nz_source_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1, t.x, Nd2NzParams(1, 16, 16, 0, 135, 16, 1, 0));
}
void bounds_load_data_source(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LoadData(t.a, t.l1, LoadData2DParams(7, 2, 1, 0, 0, false, 0));  // finds LocalBounds
}
void bounds_load_data_target(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LoadData(t.a, t.l1, LoadData2DParams(0, 2, 1, 0, 7, false, 0));  // finds LocalBounds
}
void bounds_load_data_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LoadData(t.a, t.l1, LoadData2DParams(6, 2, 1, 0, 6, false, 0));
}
void bounds_mmad_left(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a[7 * 256], t.b, MmadParams(16, 16, 32, 0, false, true));  // finds LocalBounds
}
void bounds_mmad_right(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b[7 * 256], MmadParams(16, 32, 16, 0, false, true));  // finds LocalBounds
}
// whole fractals of the result, though a row is all that is asked for
void bounds_mmad_result(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    LocalTensor<float> row = t.l0cBuffer.Get<float>(16);
    Mmad(row, t.a, t.b, MmadParams(1, 16, 16, 0, false, true));  // finds LocalBounds
}
void bounds_fixpipe(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Fixpipe(t.z, t.c[3 * 256], FixpipeParamsV220(32, 1, 16, 32, false));  // finds LocalBounds
}
void bounds_fixpipe_target(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Fixpipe(t.z, t.c, FixpipeParamsV220(16, 16, 16, 68, false));  // finds GmBounds
}
void overlap_nd2nz_pieces(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1, t.x, Nd2NzParams(1, 16, 32, 0, 32, 15, 1, 0));  // finds Overlap
}
void overlap_nd2nz_matrices(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1, t.x, Nd2NzParams(2, 8, 16, 128, 16, 16, 1, 112));  // finds Overlap
}
void overlap_nd2nz_rows_in_turn(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    DataCopy(t.l1, t.x, Nd2NzParams(1, 16, 32, 0, 32, 1, 2, 0));
}
void overlap_fixpipe(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Fixpipe(t.z, t.c, FixpipeParamsV220(16, 16, 16, 15, false));  // finds Overlap
}
void overlap_fixpipe_of_one_row(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Fixpipe(t.z, t.c, FixpipeParamsV220(16, 1, 16, 15, false));
}
// the second product begins at row 16 of a result of 32 rows, which has no such layout
void overlap_mmad_rows(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b, MmadParams(16, 32, 16, 0, false, true));
    PipeBarrier<PIPE_ALL>();
    Mmad(t.c[256], t.a, t.b, MmadParams(16, 32, 16, 0, false, true));  // finds Overlap
}
void overlap_mmad_rows_from_the_last(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Fixpipe(t.z, t.c, FixpipeParamsV220(64, 16, 16, 64, false));
    PipeBarrier<PIPE_ALL>();
    Mmad(t.c[256], t.a, t.b, MmadParams(16, 32, 16, 0, false, true));
    PipeBarrier<PIPE_ALL>();
    Mmad(t.c, t.a, t.b, MmadParams(16, 32, 16, 0, false, true));  // finds Overlap
}
void overlap_mmad_columns_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b, MmadParams(16, 32, 16, 0, false, true));
    Mmad(t.c[512], t.a, t.b, MmadParams(16, 32, 16, 0, false, true));
}
void overlap_mmad_rows_of_one_fractal_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b, kOneProduct);
    Mmad(t.c[256], t.a, t.b, kOneProduct);
}
void overlap_mmad_behind_fixpipe_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b, MmadParams(16, 32, 16, 0, false, true));
    PipeBarrier<PIPE_ALL>();
    Fixpipe(t.z, t.c, FixpipeParamsV220(32, 16, 16, 32, false));
    PipeBarrier<PIPE_ALL>();
    Mmad(t.c[256], t.a, t.b, MmadParams(16, 32, 16, 0, false, true));
}
// ---- contents ------------------------------------------------------------------------------------------------------
void contents_of_l0(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    TBuf<TPosition::A2> buffer;
    t.pipe.InitBuffer(buffer, 512);
    Mmad(t.c, buffer.Get<half>(), t.b, kOneProduct);  // finds Uninitialised
}
// five rows are copied, and the rest of the fractal is moved along
struct FiveRows : Tensors {
    TBuf<TPosition::A1> l1Buffer2;
    TBuf<TPosition::A2> l0aBuffer2;
    LocalTensor<half> rows;
    FiveRows(GM_ADDR x, GM_ADDR z, bool turned) : Tensors(x, z)
    {
        pipe.InitBuffer(l1Buffer2, 512);
        pipe.InitBuffer(l0aBuffer2, 512);
        rows = l0aBuffer2.Get<half>();
        DataCopy(l1Buffer2.Get<half>(), this->x, Nd2NzParams(1, 5, 16, 0, 16, 16, 1, 0));
        PipeBarrier<PIPE_ALL>();
        LoadData(rows, l1Buffer2.Get<half>(), LoadData2DParams(0, 1, 1, 0, 0, turned, 0));
        PipeBarrier<PIPE_ALL>();
    }
};
void contents_of_rows(GM_ADDR x, GM_ADDR z)
{
    FiveRows t(x, z, false);
    Mmad(t.c, t.rows, t.b, MmadParams(6, 16, 16, 0, false, true));  // finds Uninitialised
}
void contents_of_rows_clean(GM_ADDR x, GM_ADDR z)
{
    FiveRows t(x, z, false);
    Mmad(t.c, t.rows, t.b, MmadParams(5, 16, 16, 0, false, true));
}
void contents_of_columns(GM_ADDR x, GM_ADDR z)
{
    FiveRows t(x, z, true);
    Mmad(t.c, t.rows, t.b, MmadParams(16, 16, 6, 0, false, true));  // finds Uninitialised
}
void contents_of_columns_clean(GM_ADDR x, GM_ADDR z)
{
    FiveRows t(x, z, true);
    Mmad(t.c, t.rows, t.b, MmadParams(16, 16, 5, 0, false, true));
}
void contents_of_the_sum(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    TBuf<TPosition::CO1> buffer;
    t.pipe.InitBuffer(buffer, 1024);
    Mmad(buffer.Get<float>(), t.a, t.b, MmadParams(16, 16, 16, 0, false, false));  // finds Uninitialised
}
void contents_behind_the_rows_of_a_result(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b, MmadParams(5, 16, 16, 0, false, true));
    PipeBarrier<PIPE_ALL>();
    Fixpipe(t.z, t.c, FixpipeParamsV220(16, 6, 16, 16, false));  // finds Uninitialised
}
void contents_behind_the_columns_of_a_result(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b, MmadParams(16, 20, 16, 0, false, true));
    PipeBarrier<PIPE_ALL>();
    Fixpipe(t.z, t.c, FixpipeParamsV220(21, 16, 16, 21, false));  // finds Uninitialised
}
void contents_of_a_result_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b, MmadParams(5, 20, 16, 0, false, true));
    PipeBarrier<PIPE_ALL>();
    Fixpipe(t.z, t.c, FixpipeParamsV220(20, 5, 16, 20, false));
}
void contents_of_whole_fractals_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    Mmad(t.c, t.a, t.b, MmadParams(5, 20, 16, 0, false, true));
    PipeBarrier<PIPE_ALL>();
    Fixpipe(t.z, t.c, FixpipeParamsV220(32, 5, 16, 32, false));
}
// ---- 8 bits --------------------------------------------------------------------------------------------------------
// 8 fractals of 16 x 32 in each memory, of bytes that the tensors of halves have
struct Bytes : Tensors {
    LocalTensor<int8_t> l1Bytes, aBytes, bBytes;
    LocalTensor<int32_t> sums;
    GlobalTensor<int8_t> xBytes;
    GlobalTensor<int32_t> zSums;
    Bytes(GM_ADDR from, GM_ADDR to) : Tensors(from, to)
    {
        l1Bytes = l1.ReinterpretCast<int8_t>();
        aBytes = a.ReinterpretCast<int8_t>();
        bBytes = b.ReinterpretCast<int8_t>();
        sums = c.ReinterpretCast<int32_t>();
        xBytes.SetGlobalBuffer((__gm__ int8_t*)from, 4096);
        zSums.SetGlobalBuffer((__gm__ int32_t*)to, 1024);
    }
};
// a piece of 32 elements is one block
void bytes_nd2nz_clean(GM_ADDR x, GM_ADDR z)
{
    Bytes t(x, z);
    DataCopy(t.l1Bytes[32], t.xBytes[1], Nd2NzParams(1, 16, 32, 0, 32, 15, 1, 0));
}
void bytes_turned(GM_ADDR x, GM_ADDR z)
{
    Bytes t(x, z);
    LoadData(t.bBytes, t.l1Bytes, LoadData2DParams(0, 1, 1, 0, 0, true, 0));  // finds Parameter
}
void bytes_load_data_clean(GM_ADDR x, GM_ADDR z)
{
    Bytes t(x, z);
    LoadData(t.bBytes[512], t.l1Bytes[32], kOneFractal);
}
// a depth of 33 is two fractals
void bytes_mmad_depth(GM_ADDR x, GM_ADDR z)
{
    Bytes t(x, z);
    Mmad(t.sums, t.aBytes[7 * 512], t.bBytes, MmadParams(16, 16, 33, 0, false, true));  // finds LocalBounds
}
void bytes_mmad_clean(GM_ADDR x, GM_ADDR z)
{
    Bytes t(x, z);
    Mmad(t.sums, t.aBytes[7 * 512], t.bBytes[512], MmadParams(16, 16, 32, 0, false, true));
}
void bytes_mmad_columns(GM_ADDR x, GM_ADDR z)
{
    Bytes t(x, z);
    Mmad(t.sums, t.aBytes, t.bBytes[7 * 512], MmadParams(16, 17, 32, 0, false, true));  // finds LocalBounds
}
void bytes_fixpipe_quantised(GM_ADDR x, GM_ADDR z)
{
    Bytes t(x, z);
    FixpipeParamsV220 params = kOneResult;
    params.quantPre = QuantMode_t::DEQF16;
    Fixpipe(t.zSums, t.sums, params);  // finds Unsupported
}
void bytes_fixpipe_clean(GM_ADDR x, GM_ADDR z)
{
    Bytes t(x, z);
    Mmad(t.sums, t.aBytes, t.bBytes, kOneProduct);
    PipeBarrier<PIPE_ALL>();
    Fixpipe(t.zSums, t.sums, kOneResult);
}
// ---- flags of the other kind of core -------------------------------------------------------------------------------
void flag_of_a_vector_core(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    SetFlag<HardEvent::V_MTE3>(0);  // finds Unsupported
}
void flag_of_a_cube_core(GM_ADDR, GM_ADDR)
{
    SetFlag<HardEvent::M_FIX>(0);  // finds Unsupported
}
void flag_that_a_tpipe_holds(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    SetFlag<HardEvent::M_MTE1>(2);  // finds FlagSetTwice
}
void flag_that_a_tpipe_leaves_clean(GM_ADDR x, GM_ADDR z)
{
    Tensors t(x, z);
    SetFlag<HardEvent::M_MTE1>(3);
    WaitFlag<HardEvent::M_MTE1>(3);
}
}
