// Products on the cube core, alone and together with the vector cores of a mixed kernel.
#include "api_cube.h"

using namespace harness;

template <typename T>
__aicore__ inline void Multiply(GM_ADDR left, GM_ADDR right, GM_ADDR result, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    CubeBench<T> bench;
    bench.Run(left, right, result, ReadFields<Product>(tiling));
}

// Twice what the cube core left in the workspace, each vector core its rows.
__aicore__ inline void DoubleRows(TPipe& pipe, GM_ADDR workspace, GM_ADDR result, const Product& p, uint32_t column)
{
    TQue<TPosition::VECIN, 1> in;
    TQue<TPosition::VECOUT, 1> out;
    pipe.InitBuffer(in, 1, p.columns * sizeof(float));
    pipe.InitBuffer(out, 1, p.columns * sizeof(float));
    GlobalTensor<float> from, to;
    from.SetGlobalBuffer((__gm__ float*)workspace, p.m * p.columns);
    to.SetGlobalBuffer((__gm__ float*)result, p.m * p.resultStride);
    for (uint32_t row = static_cast<uint32_t>(GetSubBlockIdx()); row < p.m; row += 2) {
        LocalTensor<float> x = in.AllocTensor<float>();
        DataCopy(x, from[row * p.columns], p.columns);
        in.EnQue(x);
        x = in.DeQue<float>();
        LocalTensor<float> z = out.AllocTensor<float>();
        Muls(z, x, 2.0f, p.columns);
        in.FreeTensor(x);
        out.EnQue(z);
        z = out.DeQue<float>();
        DataCopy(to[row * p.resultStride + column], z, p.columns);
        out.FreeTensor(z);
    }
}

extern "C" {
__global__ __aicore__ void multiply_half(GM_ADDR left, GM_ADDR right, GM_ADDR result, GM_ADDR tiling)
{
    Multiply<half>(left, right, result, tiling);
}
__global__ __aicore__ void multiply_bfloat16(GM_ADDR left, GM_ADDR right, GM_ADDR result, GM_ADDR tiling)
{
    Multiply<bfloat16_t>(left, right, result, tiling);
}
__global__ __aicore__ void multiply_int8(GM_ADDR left, GM_ADDR right, GM_ADDR result, GM_ADDR tiling)
{
    Multiply<int8_t>(left, right, result, tiling);
}
// 32 rows of 64 elements, two or four of which are copied as one: the columns of the first rows come first
__global__ __aicore__ void rows_as_one(GM_ADDR left, GM_ADDR right, GM_ADDR result, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    constexpr uint32_t m = 4, n = 32, k = 64;
    const uint32_t fold = ReadFields<uint32_t>(tiling);
    TPipe pipe;
    TBuf<TPosition::A1> l1;
    TBuf<TPosition::A2> l0a;
    TBuf<TPosition::B2> l0b;
    TBuf<TPosition::CO1> l0c;
    pipe.InitBuffer(l1, (kEdge + 4 * n) * k);
    pipe.InitBuffer(l0a, kEdge * k);
    pipe.InitBuffer(l0b, 4 * n * k);
    pipe.InitBuffer(l0c, 4 * n * kEdge * sizeof(int32_t));
    GlobalTensor<int8_t> a, b;
    GlobalTensor<int32_t> c;
    a.SetGlobalBuffer((__gm__ int8_t*)left, m * k);
    b.SetGlobalBuffer((__gm__ int8_t*)right, n * k);
    c.SetGlobalBuffer((__gm__ int32_t*)result, m * n);
    LocalTensor<int8_t> a1 = l1.Get<int8_t>(), b1 = l1.Get<int8_t>()[kEdge * k];
    CopyRows(a1, a, m, k, k, kEdge);
    CopyRows(b1, b, n / fold, fold * k, fold * k, Blocks(n / fold) * kEdge);
    PipeBarrier<PIPE_ALL>();
    const uint32_t fractals = Blocks(n / fold) * (k / kDepth<int8_t>);
    LoadFractals(l0a.Get<int8_t>(), a1, k / kDepth<int8_t>, 1);
    LoadFractals(l0b.Get<int8_t>(), b1, fold * fractals, 1);
    PipeBarrier<PIPE_ALL>();
    for (uint32_t part = 0; part < fold; ++part) {
        Mmad(l0c.Get<int32_t>(), l0a.Get<int8_t>(), l0b.Get<int8_t>()[part * fractals * kElements<int8_t>],
             MmadParams(m, n / fold, k, 0, false, true));
        PipeBarrier<PIPE_ALL>();
        Fixpipe(c[part * n / fold], l0c.Get<int32_t>(), FixpipeParamsV220(n / fold, m, kEdge, n, false));
        PipeBarrier<PIPE_ALL>();
    }
}
// B as [k, n] in global memory: LoadData turns its fractals round
__global__ __aicore__ void multiply_transposed(GM_ADDR left, GM_ADDR right, GM_ADDR result)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    constexpr uint32_t m = 16, n = 48, k = 32;
    TPipe pipe;
    TBuf<TPosition::A1> l1;
    TBuf<TPosition::A2> l0a;
    TBuf<TPosition::B2> l0b;
    TBuf<TPosition::CO1> l0c;
    pipe.InitBuffer(l1, (m + n) * k * sizeof(half));
    pipe.InitBuffer(l0a, m * k * sizeof(half));
    pipe.InitBuffer(l0b, n * k * sizeof(half));
    pipe.InitBuffer(l0c, m * n * sizeof(float));
    GlobalTensor<half> a, b;
    GlobalTensor<float> c;
    a.SetGlobalBuffer((__gm__ half*)left, m * k);
    b.SetGlobalBuffer((__gm__ half*)right, k * n);
    c.SetGlobalBuffer((__gm__ float*)result, m * n);
    LocalTensor<half> a1 = l1.Get<half>(), b1 = l1.Get<half>()[m * k];
    CopyRows(a1, a, m, k, k, m);
    CopyRows(b1, b, k, n, n, k);
    PipeBarrier<PIPE_ALL>();
    LoadFractals(l0a.Get<half>(), a1, k / kEdge, 1);
    for (uint32_t block = 0; block < k / kEdge; ++block) {
        LoadData2DParams params(block, n / kEdge, k / kEdge, 0, 0, true, 0);
        LoadData(l0b.Get<half>()[block * (n / kEdge) * kFractal], b1, params);
    }
    PipeBarrier<PIPE_ALL>();
    Mmad(l0c.Get<float>(), l0a.Get<half>(), l0b.Get<half>(), MmadParams(m, n, k, 0, false, true));
    PipeBarrier<PIPE_ALL>();
    Fixpipe(c, l0c.Get<float>(), FixpipeParamsV220(n, m, m, n, false));
}

// Each block has its columns, and does them in rounds through a workspace of one round.
__global__ __aicore__ void mixed_product(GM_ADDR left, GM_ADDR right, GM_ADDR workspace, GM_ADDR result, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    constexpr uint16_t kFull = 3, kFree = 4;
    const Product p = ReadFields<Product>(tiling);
    const uint32_t rounds = p.n / p.columns / static_cast<uint32_t>(GetBlockNum());
    const uint32_t block = static_cast<uint32_t>(GetBlockIdx() / GetTaskRation());
    GM_ADDR own = workspace + block * p.m * p.columns * sizeof(float);
    for (uint32_t round = 0; round < rounds; ++round) {
        const uint32_t column = (block * rounds + round) * p.columns;
        if ASCEND_IS_AIC {
            if (round > 0) CrossCoreWaitFlag(kFree);
            Product part = p;
            part.n = p.columns;
            part.resultStride = p.columns;
            CubeBench<half> bench;
            bench.Run(left, right + column * p.rightStride * sizeof(half), own, part);
            CrossCoreSetFlag<2, PIPE_FIX>(kFull);
        }
        if ASCEND_IS_AIV {
            TPipe pipe;
            CrossCoreWaitFlag(kFull);
            DoubleRows(pipe, own, result, p, column);
            if (round + 1 < rounds) CrossCoreSetFlag<2, PIPE_MTE2>(kFree);
        }
    }
}

// what a core is told about its place, one line of the data cache each: first the cube cores, then the vector cores
__global__ __aicore__ void mixed_places(GM_ADDR places)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    int64_t row = GetBlockIdx();
    if ASCEND_IS_AIV {
        row += GetBlockNum();
    }
    const int64_t values[] = {GetBlockIdx(), GetSubBlockIdx(), GetSubBlockNum(), GetTaskRation(), GetBlockNum()};
    GlobalTensor<int32_t> line;
    line.SetGlobalBuffer((__gm__ int32_t*)places + row * 16, 16);
    for (uint32_t i = 0; i < 5; ++i) line.SetValue(i, static_cast<int32_t>(values[i]));
    DataCacheCleanAndInvalid<int32_t, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(line);
}

// fractals put together in L1 in different ways, each multiplied by the identity
__global__ __aicore__ void copies_into_l1(GM_ADDR x, GM_ADDR identity, GM_ADDR result)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    TPipe pipe;
    TBuf<TPosition::A1> l1;
    TBuf<TPosition::A2> l0a;
    TBuf<TPosition::B2> l0b;
    TBuf<TPosition::CO1> l0c;
    pipe.InitBuffer(l1, 6 * 512);
    pipe.InitBuffer(l0a, 5 * 512);
    pipe.InitBuffer(l0b, 512);
    pipe.InitBuffer(l0c, 5 * 1024);
    GlobalTensor<half> from, unit;
    GlobalTensor<float> to;
    from.SetGlobalBuffer((__gm__ half*)x, 1024);
    unit.SetGlobalBuffer((__gm__ half*)identity, 256);
    to.SetGlobalBuffer((__gm__ float*)result, 5 * 256);
    LocalTensor<half> local = l1.Get<half>();
    DataCopy(local, from, Nd2NzParams(2, 8, 23, 400, 32, 16, 1, 128));  // matrix below matrix, 23 columns
    DataCopy(local[2 * kFractal], from, Nd2NzParams(2, 8, 16, 8, 32, 16, 2, 16));  // rows in turn
    DataCopy(local[3 * kFractal], from[64], 256);  // as it is
    DataCopy(local[4 * kFractal], from, DataCopyParams(2, 8, 4, 0));  // in two pieces
    DataCopy(local[5 * kFractal], unit, 256);
    PipeBarrier<PIPE_ALL>();
    LoadFractals(l0a.Get<half>(), local, 5, 1);
    LoadFractals(l0b.Get<half>(), local[5 * kFractal], 1, 1);
    PipeBarrier<PIPE_ALL>();
    for (uint32_t i = 0; i < 5; ++i) {
        Mmad(l0c.Get<float>()[i * kFractal], l0a.Get<half>()[i * kFractal], l0b.Get<half>(),
             MmadParams(16, 16, 16, 0, false, true));
    }
    PipeBarrier<PIPE_ALL>();
    Fixpipe(to, l0c.Get<float>(), FixpipeParamsV220(16, 80, 80, 16, false));
}

// queues of all positions, two tiles through one buffer each
__global__ __aicore__ void queues_of_the_cube(GM_ADDR left, GM_ADDR right, GM_ADDR result)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    TPipe pipe;
    TQue<TPosition::A1, 1> a1Queue;
    TQue<TPosition::B1, 1> b1Queue;
    TQue<TPosition::A2, 1> a2Queue;
    TQue<TPosition::B2, 1> b2Queue;
    TQue<TPosition::CO1, 1> cQueue;
    pipe.InitBuffer(a1Queue, 1, 512);
    pipe.InitBuffer(b1Queue, 1, 512);
    pipe.InitBuffer(a2Queue, 1, 512);
    pipe.InitBuffer(b2Queue, 1, 512);
    pipe.InitBuffer(cQueue, 1, 1024);
    for (uint32_t tile = 0; tile < 2; ++tile) {
        GlobalTensor<half> a, b;
        GlobalTensor<float> c;
        a.SetGlobalBuffer((__gm__ half*)left + tile * 256, 256);
        b.SetGlobalBuffer((__gm__ half*)right + tile * 256, 256);
        c.SetGlobalBuffer((__gm__ float*)result + tile * 256, 256);
        LocalTensor<half> a1 = a1Queue.AllocTensor<half>(), b1 = b1Queue.AllocTensor<half>();
        CopyRows(a1, a, 16, 16, 16, 16);
        CopyRows(b1, b, 16, 16, 16, 16);
        a1Queue.EnQue(a1);
        b1Queue.EnQue(b1);
        a1 = a1Queue.DeQue<half>();
        b1 = b1Queue.DeQue<half>();
        LocalTensor<half> a2 = a2Queue.AllocTensor<half>(), b2 = b2Queue.AllocTensor<half>();
        LoadFractals(a2, a1, 1, 1);
        LoadFractals(b2, b1, 1, 1);
        a1Queue.FreeTensor(a1);
        b1Queue.FreeTensor(b1);
        a2Queue.EnQue(a2);
        b2Queue.EnQue(b2);
        a2 = a2Queue.DeQue<half>();
        b2 = b2Queue.DeQue<half>();
        LocalTensor<float> product = cQueue.AllocTensor<float>();
        Mmad(product, a2, b2, MmadParams(16, 16, 16, 0, false, true));
        a2Queue.FreeTensor(a2);
        b2Queue.FreeTensor(b2);
        cQueue.EnQue(product);
        product = cQueue.DeQue<float>();
        Fixpipe(c, product, FixpipeParamsV220(16, 16, 16, 16, false));
        cQueue.FreeTensor(product);
    }
}
}
