// What the kernels of the API tests share: tensors in one buffer, whole arrays in and out. Every step is fenced, so
// that a test sees the arithmetic of a call and no missing synchronisation.
#pragma once

#include "kernel_operator.h"

namespace harness {

using namespace AscendC;

class Bench {
public:
    __aicore__ inline Bench() { pipe_.InitBuffer(buffer_, 160 * 1024); }

    template <typename T>
    __aicore__ inline LocalTensor<T> Make(uint32_t count)
    {
        const uint32_t bytes = (count * sizeof(T) + 31) / 32 * 32;
        LocalTensor<T> tensor = buffer_.GetWithOffset<T>(bytes / sizeof(T), next_);
        next_ += bytes;
        return tensor;
    }

    // A tensor with all elements equal; 16- and 32-bit types.
    template <typename T>
    __aicore__ inline LocalTensor<T> Filled(uint32_t count, T value)
    {
        LocalTensor<T> tensor = Make<T>(count);
        Duplicate(tensor, value, static_cast<int32_t>(tensor.GetSize()));
        PipeBarrier<PIPE_ALL>();
        return tensor;
    }

    template <typename T>
    __aicore__ inline LocalTensor<T> Load(GM_ADDR gm, uint32_t count, uint32_t from = 0)
    {
        GlobalTensor<T> source;
        source.SetGlobalBuffer((__gm__ T*)gm + from, count);
        LocalTensor<T> tensor = Make<T>(count);
        DataCopyPad(tensor, source, DataCopyExtParams(1, count * sizeof(T), 0, 0, 0),
                    DataCopyPadExtParams<T>(false, 0, 0, 0));
        PipeBarrier<PIPE_ALL>();
        return tensor;
    }

    template <typename T>
    __aicore__ inline void Store(GM_ADDR gm, const LocalTensor<T>& tensor, uint32_t count, uint32_t to = 0)
    {
        GlobalTensor<T> target;
        target.SetGlobalBuffer((__gm__ T*)gm + to, count);
        PipeBarrier<PIPE_ALL>();
        DataCopyPad(target, tensor, DataCopyExtParams(1, count * sizeof(T), 0, 0, 0));
        PipeBarrier<PIPE_ALL>();
    }

private:
    TPipe pipe_;
    TBuf<TPosition::VECCALC> buffer_;
    uint32_t next_ = 0;
};

}  // namespace harness
