// Queues, buffers and what a kernel asks of its surroundings. Marks as in api_checks.cpp.
#include "api_harness.h"

using namespace harness;

// A queue with its pipe, and tensors by number.
template <TPosition position, int32_t depth, uint8_t buffers>
struct Queued {
    TPipe pipe;
    TQue<position, depth> queue;
    Queued() { pipe.InitBuffer(queue, buffers, 256); }

    LocalTensor<float> Filled()
    {
        LocalTensor<float> tensor = queue.template AllocTensor<float>();
        Duplicate(tensor, 1.0f, 64);
        return tensor;
    }
};

using InQueue = Queued<TPosition::VECIN, 2, 2>;
using OutQueue = Queued<TPosition::VECOUT, 2, 2>;

struct Plain {
    int32_t first;
    float second;
};

struct Tiling {
    int32_t first;
    float second;
    int64_t large[20];
};

extern "C" {
void queue_round_trip(GM_ADDR x, GM_ADDR z)
{
    InQueue in;
    TQue<TPosition::VECOUT, 1> out;
    in.pipe.InitBuffer(out, 1, 256);
    GlobalTensor<float> from;
    from.SetGlobalBuffer((__gm__ float*)x, 256);
    GlobalTensor<float> to;
    to.SetGlobalBuffer((__gm__ float*)z, 256);
    for (uint32_t i = 0; i < 4; ++i) {
        LocalTensor<float> a = in.queue.AllocTensor<float>();
        DataCopy(a, from[i * 64], 64);
        in.queue.EnQue(a);
        a = in.queue.DeQue<float>();
        LocalTensor<float> d = out.AllocTensor<float>();
        Muls(d, a, 2.0f, 64);
        in.queue.FreeTensor(a);
        out.EnQue<float>(d);
        d = out.DeQue<float>();
        DataCopy(to[i * 64], d, 64);
        out.FreeTensor(d);
    }
}
// through the buffer without the vector unit
void queue_bound_to_both_sides(GM_ADDR x, GM_ADDR z)
{
    TPipe pipe;
    TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> queue;
    pipe.InitBuffer(queue, 2, 256);
    GlobalTensor<float> from;
    from.SetGlobalBuffer((__gm__ float*)x, 256);
    GlobalTensor<float> to;
    to.SetGlobalBuffer((__gm__ float*)z, 256);
    for (uint32_t i = 0; i < 4; ++i) {
        LocalTensor<float> a = queue.AllocTensor<float>();
        DataCopy(a, from[i * 64], 64);
        queue.EnQue(a);
        a = queue.DeQue<float>();
        DataCopy(to[i * 64], a, 64);
        queue.FreeTensor(a);
    }
}
void queue_no_free_buffer(GM_ADDR, GM_ADDR)
{
    InQueue q;
    for (int i = 0; i < 3; ++i) {
        q.queue.AllocTensor<float>();  // finds Queue
    }
}
void queue_without_buffers(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    queue.AllocTensor<float>();  // finds Queue
}
void queue_empty(GM_ADDR, GM_ADDR)
{
    InQueue q;
    q.queue.DeQue<float>();  // finds Queue
}
void queue_enqueued_twice(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    LocalTensor<float> a = q.Filled();
    q.queue.EnQue(a);
    q.queue.EnQue(a);  // finds Queue
}
void queue_full(GM_ADDR, GM_ADDR)
{
    Queued<TPosition::VECOUT, 1, 2> q;
    LocalTensor<float> a = q.Filled();
    LocalTensor<float> b = q.Filled();
    q.queue.EnQue(a);
    q.queue.EnQue(b);  // finds Queue
}
void queue_freed_twice(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    LocalTensor<float> a = q.Filled();
    q.queue.FreeTensor(a);
    q.queue.FreeTensor(a);  // finds Queue
}
void queue_freed_while_enqueued(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    LocalTensor<float> a = q.Filled();
    q.queue.EnQue(a);
    q.queue.FreeTensor(a);  // finds Queue
}
void queue_of_another(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    TQue<TPosition::VECOUT, 1> other;
    q.pipe.InitBuffer(other, 1, 256);
    LocalTensor<float> a = q.Filled();
    other.EnQue(a);  // finds Queue
}
void queue_used_while_enqueued(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    LocalTensor<float> a = q.Filled();
    q.queue.EnQue(a);
    PipeBarrier<PIPE_V>();
    Muls(a, a, 2.0f, 64);  // finds Queue
    a = q.queue.DeQue<float>();
    q.queue.FreeTensor(a);
}
void queue_used_after_free(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    LocalTensor<float> a = q.Filled();
    q.queue.FreeTensor(a);
    PipeBarrier<PIPE_V>();
    Duplicate(a, 1.0f, 64);  // finds UseAfterFree
}
void queue_stale_tensor(GM_ADDR, GM_ADDR)
{
    Queued<TPosition::VECOUT, 1, 1> q;
    LocalTensor<float> old = q.Filled();
    LocalTensor<float> copy = old;
    q.queue.FreeTensor(old);
    PipeBarrier<PIPE_V>();
    q.Filled();
    q.queue.FreeTensor(copy);  // finds UseAfterFree
}
void queue_leak(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    LocalTensor<float> a = q.queue.AllocTensor<float>();  // finds Leak
    Duplicate(a, 1.0f, 64);
}
void queue_leak_of_an_enqueued_tensor(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    LocalTensor<float> a = q.queue.AllocTensor<float>();  // finds Leak
    Duplicate(a, 1.0f, 64);
    q.queue.EnQue(a);  // finds FlagNeverWaited
}
void queue_fresh_tensor(GM_ADDR, GM_ADDR)
{
    OutQueue q;
    LocalTensor<float> a = q.Filled();
    q.queue.FreeTensor(a);
    a = q.queue.AllocTensor<float>();
    Muls(a, a, 2.0f, 64);  // finds Uninitialised
    q.queue.FreeTensor(a);
}
void queue_dies_before_its_pipe(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    {
        TQue<TPosition::VECOUT, 1> queue;
        pipe.InitBuffer(queue, 1, 256);
        LocalTensor<float> a = queue.AllocTensor<float>();
        Duplicate(a, 1.0f, 64);
        queue.FreeTensor(a);
    }
}
void pipe_destroy(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 180 * 1024);
    pipe.Destroy();
    TPipe second;
    second.InitBuffer(buffer, 180 * 1024);
}
void pipe_empty_buffer(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 0);  // finds Parameter
}
void pipe_no_buffers(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 0, 32);  // finds Parameter
}
void pipe_too_many_buffers(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 60, 32);
    TQue<TPosition::VECIN, 1> second;
    pipe.InitBuffer(second, 5, 32);  // finds Parameter
}
void pipe_64_buffers(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 63, 32);
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 1);
}
void pipe_capacity(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 184 * 1024);  // finds LocalCapacity
}
void pipe_event_ids(GM_ADDR, GM_ADDR)
{
    Bench bench;
    LocalTensor<float> a = bench.Filled<float>(64, 1.0f);
    TPipe* pipe = GetTPipePtr();
    const TEventID first = pipe->AllocEventID<HardEvent::V_S>();
    const TEventID second = pipe->FetchEventID(HardEvent::V_S);
    Muls(a, a, 2.0f, 64);
    SetFlag<HardEvent::V_S>(first);
    WaitFlag<HardEvent::V_S>(first);
    SetFlag<HardEvent::S_V>(a.GetValue(0) == 2.0f && first != second ? 0 : -1);
    WaitFlag<HardEvent::S_V>(0);
    pipe->ReleaseEventID<HardEvent::V_S>(first);
}
void pipe_event_of_the_cube(GM_ADDR, GM_ADDR)
{
    TPipe pipe;
    pipe.FetchEventID(HardEvent::M_FIX);  // finds Unsupported
}
// ---- tiling data and the launch --------------------------------------------------------------------------------
void launch_tiling(GM_ADDR tiling, GM_ADDR z)
{
    Bench bench;
    REGISTER_TILING_DEFAULT(Tiling);
#ifdef GET_TILING_DATA
    GET_TILING_DATA(whole, tiling);
    GET_TILING_DATA_WITH_STRUCT(Plain, part, tiling);
    GET_TILING_DATA_MEMBER(Tiling, large, numbers, tiling);
    LocalTensor<float> values = bench.Filled<float>(8, 0.0f);
    values.SetValue(0, static_cast<float>(whole.first));
    values.SetValue(1, part.second);
    values.SetValue(2, static_cast<float>(numbers[19]));
    values.SetValue(3, TILING_KEY_IS(7) ? 1.0f : 0.0f);
    bench.Store(z, values, 4);
#endif
}
void launch_tiling_too_short(GM_ADDR tiling, GM_ADDR)
{
    struct Long {
        int32_t numbers[2000];
    };
#ifdef GET_TILING_DATA_WITH_STRUCT
    GET_TILING_DATA_WITH_STRUCT(Long, data, tiling);  // finds GmBounds
    (void)data;
#endif
}
void launch_block(GM_ADDR, GM_ADDR z)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    KERNEL_TASK_TYPE(7, KERNEL_TYPE_MIX_AIV_1_0);
    Bench bench;
    LocalTensor<int32_t> values = bench.Filled<int32_t>(8, static_cast<int32_t>(GetBlockIdx()));
    values.SetValue(1, static_cast<int32_t>(GetBlockNum()));
    values.SetValue(2, static_cast<int32_t>(GetSubBlockNum() + GetSubBlockIdx() + GetTaskRation()));
    if ASCEND_IS_AIV {
        values.SetValue(3, 1);
    }
    bench.Store(GetUserWorkspace(z), values, 4, static_cast<uint32_t>(GetBlockIdx()) * 4);
}
void launch_sync_all(GM_ADDR, GM_ADDR z)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);
    const uint32_t block = static_cast<uint32_t>(GetBlockIdx());
    const uint32_t other = (block + 1) % static_cast<uint32_t>(GetBlockNum());
    Bench bench;
    LocalTensor<float> mine = bench.Filled<float>(8, static_cast<float>(block));
    bench.Store(z, mine, 8, block * 8);
    SyncAll();
    LocalTensor<float> read = bench.Load<float>(z, 8, other * 8);
    SyncAll<true>();
    bench.Store(z, read, 8, block * 8);
}
}
