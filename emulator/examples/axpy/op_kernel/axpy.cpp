// z = alpha * x + y, tile by tile, with double-buffered queues.
#include "axpy_tiling.h"
#include "kernel_operator.h"

using namespace AscendC;

extern "C" __global__ __aicore__ void axpy(GM_ADDR x, GM_ADDR y, GM_ADDR z, GM_ADDR workspace, GM_ADDR tiling)
{
    REGISTER_TILING_DEFAULT(AxpyTiling);
    GET_TILING_DATA(data, tiling);
    (void)workspace;
    const uint32_t mine = data.tiles * kTile;
    GlobalTensor<float> xGm, yGm, zGm;
    xGm.SetGlobalBuffer((__gm__ float*)x + GetBlockIdx() * mine, mine);
    yGm.SetGlobalBuffer((__gm__ float*)y + GetBlockIdx() * mine, mine);
    zGm.SetGlobalBuffer((__gm__ float*)z + GetBlockIdx() * mine, mine);
    TPipe pipe;
    TQue<TPosition::VECIN, 2> xQueue, yQueue;
    TQue<TPosition::VECOUT, 2> zQueue;
    pipe.InitBuffer(xQueue, 2, kTile * sizeof(float));
    pipe.InitBuffer(yQueue, 2, kTile * sizeof(float));
    pipe.InitBuffer(zQueue, 2, kTile * sizeof(float));

    for (uint32_t tile = 0; tile < data.tiles; tile++) {
        LocalTensor<float> xIn = xQueue.AllocTensor<float>();
        LocalTensor<float> yIn = yQueue.AllocTensor<float>();
        DataCopy(xIn, xGm[tile * kTile], kTile);
        DataCopy(yIn, yGm[tile * kTile], kTile);
        xQueue.EnQue(xIn);
        yQueue.EnQue(yIn);

        LocalTensor<float> xs = xQueue.DeQue<float>();
        LocalTensor<float> ys = yQueue.DeQue<float>();
        LocalTensor<float> zs = zQueue.AllocTensor<float>();
        Muls(zs, xs, data.alpha, kTile);
        PipeBarrier<PIPE_V>();  // Add reads what Muls writes
        Add(zs, zs, ys, kTile);
        zQueue.EnQue(zs);
        xQueue.FreeTensor(xs);
        yQueue.FreeTensor(ys);

        LocalTensor<float> zOut = zQueue.DeQue<float>();
        DataCopy(zGm[tile * kTile], zOut, kTile);
        zQueue.FreeTensor(zOut);
    }
}
