// Ways to read 128 bytes of tiling data.
#include "kernel_operator.h"

using namespace AscendC;

namespace {

struct Tiling {
    int64_t numbers[16];
};

GlobalTensor<uint64_t> Lines(GM_ADDR gm)
{
    GlobalTensor<uint64_t> lines;
    lines.SetGlobalBuffer(reinterpret_cast<__gm__ uint64_t*>(gm));
    return lines;
}

void Store(GM_ADDR z, int64_t value)
{
    GlobalTensor<int64_t> result;
    result.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(z));
    result.SetValue(0, value);
    DataCacheCleanAndInvalid<int64_t, CacheLine::SINGLE_CACHE_LINE>(result);
}

int64_t CopiedLast(GM_ADDR tiling)
{
    GET_TILING_DATA_PTR_WITH_STRUCT(Tiling, inGm, tiling);
    COPY_TILING_WITH_STRUCT(Tiling, inGm, data);
    return data->numbers[15];
}

void PreloadBoth(GM_ADDR tiling)
{
    DataCachePreload(Lines(tiling), static_cast<int64_t>(0));
    DataCachePreload(Lines(tiling), static_cast<int16_t>(64));
}

}  // namespace

extern "C" {

void tiling_get(GM_ADDR tiling, GM_ADDR)
{
    REGISTER_TILING_DEFAULT(Tiling);
    GET_TILING_DATA(data, tiling);
    (void)data;
}
void tiling_get_on_a_cube_core(GM_ADDR tiling, GM_ADDR)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    GET_TILING_DATA_WITH_STRUCT(Tiling, data, tiling);
    (void)data;
}
void tiling_copy(GM_ADDR tiling, GM_ADDR) { CopiedLast(tiling); }
void tiling_copy_preloaded(GM_ADDR tiling, GM_ADDR)
{
    PreloadBoth(tiling);
    CopiedLast(tiling);
}
void tiling_copy_preloaded_twice(GM_ADDR tiling, GM_ADDR)
{
    PreloadBoth(tiling);
    PreloadBoth(tiling);
    CopiedLast(tiling);
}
void tiling_value(GM_ADDR tiling, GM_ADDR z)
{
    PreloadBoth(tiling);
    Store(z, CopiedLast(tiling));
}
void tiling_preload_beyond_the_end(GM_ADDR tiling, GM_ADDR)
{
    DataCachePreload(Lines(tiling), static_cast<int64_t>(128));  // finds GmBounds
}
void preloaded_line_is_stale(GM_ADDR, GM_ADDR z)
{
    TPipe pipe;
    TBuf<> buffer;
    pipe.InitBuffer(buffer, 64);
    LocalTensor<int64_t> ones = buffer.Get<int64_t>();
    ones.SetValue(0, 1);
    GlobalTensor<int64_t> result;
    result.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(z));
    DataCachePreload(Lines(z), static_cast<int64_t>(0));
    SetFlag<HardEvent::S_MTE3>(0);
    WaitFlag<HardEvent::S_MTE3>(0);
    DataCopyPad(result, ones, DataCopyExtParams(1, 8, 0, 0, 0));
    SetFlag<HardEvent::MTE3_S>(0);
    WaitFlag<HardEvent::MTE3_S>(0);
    result.GetValue(0);  // finds StaleCache
}

}  // extern "C"
