// 12.6 million multiply-adds, strided as a product of one query with rows of keys.
#include "api_harness.h"

using namespace harness;

// 128 rows of 128 elements; a repeat takes 16 columns of 4 rows. The partial sums of 64 lanes are added up at the end.
extern "C" __global__ __aicore__ void multiply_adds(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    Bench bench;
    LocalTensor<half> query = bench.Load<half>(x, 128);
    LocalTensor<half> keys = bench.Load<half>(y, 128 * 128);
    LocalTensor<float> partial = bench.Filled<float>(32 * 64, 0.0f);
    LocalTensor<float> sum = bench.Filled<float>(64, 0.0f);
    for (uint32_t tile = 0; tile < 768; ++tile) {
        for (uint32_t column = 0; column < 8; ++column) {
            MulAddDst(partial, query[column * 16], keys[column * 16], 64, 32, BinaryRepeatParams(1, 0, 8, 8, 0, 32));
            PipeBarrier<PIPE_V>();
        }
    }
    Adds(sum, partial, 0.0f, 64);
    PipeBarrier<PIPE_V>();
    Muls(sum, sum, 0.125f, 64);
    bench.Store(z, sum, 64);
}
