// Reductions of blocks, pairs, repeats and whole tensors.
#include "api_harness.h"

using namespace harness;

constexpr uint32_t kSize = 1024;
constexpr uint32_t kRow = 512;

template <typename T, typename Call>
__aicore__ inline void Row(Bench& bench, GM_ADDR z, uint32_t row, Call call)
{
    LocalTensor<T> d = bench.Filled<T>(kRow, static_cast<T>(-9));
    call(d);
    bench.Store(z, d, kRow, row * kRow);
}

template <typename T>
__aicore__ inline void BlockRows(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kSize);
    constexpr int32_t lanes = 256 / sizeof(T);
    Row<T>(bench, z, 0, [&](LocalTensor<T>& d) { BlockReduceSum(d, a, 4, lanes, 1, 1, 8); });
    Row<T>(bench, z, 1, [&](LocalTensor<T>& d) { BlockReduceMax(d, a, 3, lanes, 2, 1, 9); });
    Row<T>(bench, z, 2, [&](LocalTensor<T>& d) { BlockReduceMax(d, a, 2, lanes - 5, 1, 2, 16); });
    uint64_t mask[2] = {0x00fe0000ffff0103, 0};
    Row<T>(bench, z, 3, [&](LocalTensor<T>& d) { BlockReduceSum(d, a, 2, mask, 1, 1, 8); });
    Row<T>(bench, z, 4, [&](LocalTensor<T>& d) { PairReduceSum(d, a, 2, lanes, 1, 1, 8); });
    Row<T>(bench, z, 5, [&](LocalTensor<T>& d) { PairReduceSum(d, a, 2, 13, 1, 1, 8); });
}

template <typename T>
__aicore__ inline void WholeRows(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kSize);
    constexpr int32_t lanes = 256 / sizeof(T);
    Row<T>(bench, z, 0, [&](LocalTensor<T>& d) { WholeReduceSum(d, a, lanes, 6, 1, 1, 8); });
    Row<T>(bench, z, 1, [&](LocalTensor<T>& d) { WholeReduceSum(d, a, lanes - 7, 3, 5, 1, 11); });
    Row<T>(bench, z, 2, [&](LocalTensor<T>& d) { WholeReduceMax(d, a, lanes, 3, 1, 1, 8); });
    Row<T>(bench, z, 3,
           [&](LocalTensor<T>& d) { WholeReduceMax(d, a, lanes, 3, 2, 1, 8, ReduceOrder::ORDER_INDEX_VALUE); });
    Row<T>(bench, z, 4,
           [&](LocalTensor<T>& d) { WholeReduceMax(d, a, lanes, 3, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE); });
    uint64_t mask[2] = {0xff00ff0, 0};
    Row<T>(bench, z, 5,
           [&](LocalTensor<T>& d) { WholeReduceMax(d, a, mask, 3, 1, 1, 8, ReduceOrder::ORDER_ONLY_INDEX); });
}

extern "C" {
__global__ __aicore__ void block_half(GM_ADDR x, GM_ADDR z) { BlockRows<half>(x, z); }
__global__ __aicore__ void block_float(GM_ADDR x, GM_ADDR z) { BlockRows<float>(x, z); }
__global__ __aicore__ void whole_half(GM_ADDR x, GM_ADDR z) { WholeRows<half>(x, z); }
__global__ __aicore__ void whole_float(GM_ADDR x, GM_ADDR z) { WholeRows<float>(x, z); }
}
