// An infinity that reaches instructions, and one that a bound takes away before: y = exp(x) of 64 lanes.
#include "kernel_operator.h"

namespace {

constexpr int32_t kCount = 64;
constexpr float kHighest = 3.0e38f;

template <bool kBounded>
void Run(GM_ADDR x, GM_ADDR y)
{
    AscendC::TPipe pipe;
    AscendC::TBuf<AscendC::TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, kCount * sizeof(float));
    AscendC::LocalTensor<float> lanes = buffer.Get<float>();
    AscendC::GlobalTensor<float> from, to;
    from.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x), kCount);
    to.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(y), kCount);
    AscendC::DataCopy(lanes, from, kCount);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    if constexpr (kBounded) {
        AscendC::Maxs(lanes, lanes, -kHighest, kCount);
        AscendC::PipeBarrier<PIPE_V>();
    }
    AscendC::Exp(lanes, lanes, kCount);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
    AscendC::DataCopy(to, lanes, kCount);
}

}  // namespace

extern "C" __global__ __aicore__ void exponentiated(GM_ADDR x, GM_ADDR y) { Run<false>(x, y); }
extern "C" __global__ __aicore__ void bounded(GM_ADDR x, GM_ADDR y) { Run<true>(x, y); }
