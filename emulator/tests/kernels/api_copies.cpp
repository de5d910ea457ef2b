// Data movement: global memory to the Unified Buffer and back, and inside the buffer.
#include "api_harness.h"

using namespace harness;

extern "C" {
// 3 pieces of 2 blocks, gaps of 1 block in global memory and 3 blocks in the buffer
__global__ __aicore__ void copy_in_blocks(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    GlobalTensor<float> source;
    source.SetGlobalBuffer((__gm__ float*)x, 128);
    LocalTensor<float> tile = bench.Filled<float>(128, -1.0f);
    DataCopy(tile, source, DataCopyParams(3, 2, 1, 3));
    bench.Store(z, tile, 128);
}
__global__ __aicore__ void copy_out_blocks(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<float> tile = bench.Load<float>(x, 128);
    LocalTensor<float> fill = bench.Filled<float>(128, -1.0f);
    GlobalTensor<float> target;
    target.SetGlobalBuffer((__gm__ float*)z, 128);
    DataCopy(target, fill, 128);
    PipeBarrier<PIPE_ALL>();
    DataCopy(target, tile, DataCopyParams(3, 2, 3, 1));
    PipeBarrier<PIPE_ALL>();
}
__global__ __aicore__ void copy_inside(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<float> tile = bench.Load<float>(x, 128);
    LocalTensor<float> other = bench.Filled<float>(128, -1.0f);
    DataCopy(other, tile[64], 32);
    PipeBarrier<PIPE_V>();
    DataCopy(other[64], tile, DataCopyParams(2, 1, 2, 1));
    bench.Store(z, other, 128);
}
__global__ __aicore__ void copy_count(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    GlobalTensor<half> source;
    source.SetGlobalBuffer((__gm__ half*)x);
    GlobalTensor<half> target;
    target.SetGlobalBuffer((__gm__ half*)z);
    target.SetL2CacheHint(CacheMode::CACHE_MODE_DISABLE);
    LocalTensor<half> tile = bench.Make<half>(256);
    DataCopy(tile, source[16], 240);
    PipeBarrier<PIPE_ALL>();
    DataCopy(target, tile, 240);
    PipeBarrier<PIPE_ALL>();
}
// pieces of 5 floats, 3 bytes over a block of 32: each fills two blocks in the buffer
__global__ __aicore__ void pad_in_value(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    GlobalTensor<float> source;
    source.SetGlobalBuffer((__gm__ float*)x, 128);
    LocalTensor<float> tile = bench.Filled<float>(96, -1.0f);
    DataCopyPad(tile, source, DataCopyExtParams(4, 20, 12, 1, 0), DataCopyPadExtParams<float>(true, 2, 4, 7.0f));
    bench.Store(z, tile, 96);
}
__global__ __aicore__ void pad_out(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<float> fill = bench.Filled<float>(64, -1.0f);
    bench.Store(z, fill, 64);
    LocalTensor<float> tile = bench.Load<float>(x, 128);
    GlobalTensor<float> target;
    target.SetGlobalBuffer((__gm__ float*)z, 64);
    DataCopyPad(target[2], tile, DataCopyExtParams(3, 20, 1, 16, 0));
    PipeBarrier<PIPE_ALL>();
}
// scalar accesses of both memories
__global__ __aicore__ void scalar_accesses(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<int32_t> tile = bench.Load<int32_t>(x, 16);
    GlobalTensor<int32_t> source;
    source.SetGlobalBuffer((__gm__ int32_t*)x, 16);
    tile.SetValue(1, tile.GetValue(0) + source.GetValue(5));
    tile[4].SetValue(0, source[6].GetValue(1) + static_cast<int32_t>(tile[8].GetSize()));
    tile.SetValue(5, static_cast<int32_t>(tile.ReinterpretCast<half>().GetSize()));
    bench.Store(z, tile, 16);
}
}
