// The tensors of the kernels that show what a call of the cube checks.
#pragma once

#include "api_cube.h"

namespace harness {

// A tensor in each memory of the cube core, all initialised, and one on each side in global memory.
struct Tensors {
    TPipe pipe;
    TBuf<TPosition::A1> l1Buffer;
    TBuf<TPosition::A2> l0aBuffer;
    TBuf<TPosition::B2> l0bBuffer;
    TBuf<TPosition::CO1> l0cBuffer;
    LocalTensor<half> l1;  // 8 fractals
    LocalTensor<half> a;
    LocalTensor<half> b;
    LocalTensor<float> c;  // 4 fractals
    GlobalTensor<half> x;
    GlobalTensor<float> z;

    Tensors(GM_ADDR from, GM_ADDR to)
    {
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
        pipe.InitBuffer(l1Buffer, 8 * 512);
        pipe.InitBuffer(l0aBuffer, 8 * 512);
        pipe.InitBuffer(l0bBuffer, 8 * 512);
        pipe.InitBuffer(l0cBuffer, 4 * 1024);
        l1 = l1Buffer.Get<half>();
        a = l0aBuffer.Get<half>();
        b = l0bBuffer.Get<half>();
        c = l0cBuffer.Get<float>();
        x.SetGlobalBuffer((__gm__ half*)from, 2048);
        z.SetGlobalBuffer((__gm__ float*)to, 1024);
        DataCopy(l1, x, 2048);
        PipeBarrier<PIPE_ALL>();
        LoadFractals(a, l1, 8, 1);
        LoadFractals(b, l1, 8, 1);
        PipeBarrier<PIPE_ALL>();
        Mmad(c, a, b, MmadParams(16, 64, 16, 0, false, true));
        PipeBarrier<PIPE_ALL>();
    }
};

}  // namespace harness
