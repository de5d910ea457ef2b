// Several cores and the scalar unit's data cache: one error each and clean neighbours, marked as in machine_checks.cpp.
// Every kernel runs on two blocks; w is the workspace.
#include "machine_steps.h"

namespace {

LocalView Filled()
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    return tile;
}

}  // namespace

extern "C" {

// ---- races between cores -------------------------------------------------------------------------------------------

void two_cores_write(uint8_t*, uint8_t* y, uint8_t*)
{
    CopyOut(y + 63 * BlockIdx(), Filled(), 64);  // finds CrossCore
}
void two_cores_write_clean(uint8_t*, uint8_t* y, uint8_t*) { CopyOut(y + 64 * BlockIdx(), Filled(), 64); }
void one_core_reads_what_another_writes(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Filled();
    Mixed();
    CopyOut(w + 64 * BlockIdx(), tile, 64);
    SyncAll();
    if (BlockIdx() == 0) CopyOut(w + 64, tile, 64);
    if (BlockIdx() == 1) CopyIn(Buffer(), w, 128);  // finds CrossCore
}
void one_core_reads_what_another_wrote_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Filled();
    Mixed();
    CopyOut(w + 64 * BlockIdx(), tile, 64);
    SyncAll();
    CopyIn(Buffer(), w, 128);
    SyncAll();
    if (BlockIdx() == 0) CopyOut(w + 64, tile, 64);
}
void sync_all_orders_the_core_itself_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Filled();
    Mixed();
    CopyOut(w + 64 * BlockIdx(), tile, 64);
    SyncAll();
    CopyIn(tile, w + 64 * BlockIdx(), 64);
}

// ---- SyncAll itself ------------------------------------------------------------------------------------------------

void sync_all_count(uint8_t*, uint8_t*, uint8_t*)
{
    Mixed();
    SyncAll();
    if (BlockIdx() == 0) SyncAll();  // finds SyncAllCount
}
void sync_all_count_clean(uint8_t*, uint8_t*, uint8_t*)
{
    Mixed();
    for (int i = 0; i < 5; ++i) SyncAll();
}
void sync_all_after_a_fault(uint8_t*, uint8_t*, uint8_t*)
{
    Mixed();
    if (BlockIdx() == 0) Wait(Pipe::kMte2, Pipe::kV);  // finds WaitWithoutSet
    SyncAll();
}
void sync_all_kernel_type(uint8_t*, uint8_t*, uint8_t*)
{
    TheCore().DeclareKernelType(KernelType::kAivOnly, Where::Here());
    SyncAll();  // finds SyncAllKernelType
}
void sync_all_kernel_type_of_the_key(uint8_t*, uint8_t*, uint8_t*)
{
    TheCore().DeclareKernelType(3, KernelType::kAivOnly, Where::Here());
    Mixed();
    SyncAll();  // finds SyncAllKernelType
}
void sync_all_without_kernel_type(uint8_t*, uint8_t*, uint8_t*)
{
    SyncAll();  // finds SyncAllKernelType
}
void sync_all_kernel_type_clean(uint8_t*, uint8_t*, uint8_t*)
{
    TheCore().DeclareKernelType(3, KernelType::kMixAiv10, Where::Here());
    TheCore().DeclareKernelType(4, KernelType::kAivOnly, Where::Here());
    TheCore().DeclareKernelType(KernelType::kAivOnly, Where::Here());
    SyncAll();
}
void sync_all_blocks(uint8_t*, uint8_t*, uint8_t*)
{
    Mixed();
    SyncAll();  // finds SyncAllBlocks
}

// ---- the data cache ------------------------------------------------------------------------------------------------

void stale_cache_after_own_dma(uint8_t*, uint8_t*, uint8_t* w)
{
    uint8_t* mine = w + 64 * BlockIdx();
    const LocalView tile = Filled();
    CopyOut(mine, tile, 64);
    Order(Pipe::kMte3, Pipe::kS);
    GetGm(mine);
    CopyOut(mine, tile, 64);
    Barrier(Pipe::kAll);
    GetGm(mine);  // finds StaleCache
}
void stale_cache_before_the_dma_has_ended(uint8_t*, uint8_t*, uint8_t* w)
{
    uint8_t* mine = w + 64 * BlockIdx();
    CopyOut(mine, Filled(), 64);
    GetGm(mine);  // finds StaleCache
}
void stale_cache_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    uint8_t* mine = w + 64 * BlockIdx();
    const LocalView tile = Filled();
    CopyOut(mine, tile, 64);
    Order(Pipe::kMte3, Pipe::kS);
    GetGm(mine);
    CopyOut(mine, tile, 64);
    Order(Pipe::kMte3, Pipe::kS, 1);
    Clean(mine);
    GetGm(mine);
}
void stale_cache_after_another_core(uint8_t*, uint8_t*, uint8_t* w)
{
    Mixed();
    const LocalView tile = Filled();
    if (BlockIdx() == 0) CopyOut(w, tile, 64);
    SyncAll();
    if (BlockIdx() == 1) GetGm(w);
    SyncAll();
    if (BlockIdx() == 0) CopyOut(w, tile, 64);
    SyncAll();
    if (BlockIdx() == 1) GetGm(w);  // finds StaleCache
}
void stale_cache_after_another_core_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    Mixed();
    const LocalView tile = Filled();
    if (BlockIdx() == 0) CopyOut(w, tile, 64);
    SyncAll();
    if (BlockIdx() == 1) GetGm(w);
    SyncAll();
    if (BlockIdx() == 0) CopyOut(w, tile, 64);
    SyncAll();
    if (BlockIdx() == 1) Clean(w);
    if (BlockIdx() == 1) GetGm(w);
}

void unflushed_at_the_end(uint8_t*, uint8_t*, uint8_t* w)
{
    SetGm(w + 64 * BlockIdx(), 1);  // finds UnflushedWrite
}
void unflushed_at_the_end_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    SetGm(w + 64 * BlockIdx(), 1);
    Clean(w + 64 * BlockIdx());
}
void unflushed_before_the_dma(uint8_t*, uint8_t*, uint8_t* w)
{
    uint8_t* mine = w + 64 * BlockIdx();
    SetGm(mine, 1);  // finds UnflushedWrite
    Order(Pipe::kS, Pipe::kMte2);
    CopyIn(Buffer(), mine, 4);
    Order(Pipe::kMte2, Pipe::kS);
    Clean(mine);
}
void flushed_without_flag_before_the_dma(uint8_t*, uint8_t*, uint8_t* w)
{
    uint8_t* mine = w + 64 * BlockIdx();
    SetGm(mine, 1);
    Clean(mine);
    CopyIn(Buffer(), mine, 4);  // finds ReadAfterWrite
}
void flushed_before_the_dma_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    uint8_t* mine = w + 64 * BlockIdx();
    SetGm(mine, 1);
    Clean(mine);
    Order(Pipe::kS, Pipe::kMte2);
    CopyIn(Buffer(), mine, 4);
}
void unflushed_before_another_core(uint8_t*, uint8_t*, uint8_t* w)
{
    Mixed();
    if (BlockIdx() == 0) SetGm(w, 1);  // finds UnflushedWrite
    SyncAll();
    if (BlockIdx() == 1) CopyIn(Buffer(), w, 4);
    SyncAll();
    if (BlockIdx() == 0) Clean(w);
}
void flushed_before_another_core_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    Mixed();
    if (BlockIdx() == 0) SetGm(w, 1);
    if (BlockIdx() == 0) TheCore().CacheCleanAll(Where::Here());
    SyncAll();
    if (BlockIdx() == 1) CopyIn(Buffer(), w, 4);
}

void shared_cache_line(uint8_t*, uint8_t*, uint8_t* w)
{
    SetGm(w + 4 * BlockIdx(), 1);  // finds SharedCacheLine
    Clean(w + 4 * BlockIdx(), 4);
}
void shared_cache_line_with_dma(uint8_t*, uint8_t*, uint8_t* w)
{
    if (BlockIdx() == 1) CopyOut(w + 32, Filled(), 32);
    if (BlockIdx() == 0) SetGm(w, 1);  // finds SharedCacheLine
    if (BlockIdx() == 0) Clean(w);
}
void shared_cache_line_with_own_dma(uint8_t*, uint8_t*, uint8_t* w)
{
    uint8_t* mine = w + 64 * BlockIdx();
    SetGm(mine, 1);  // finds SharedCacheLine
    CopyOut(mine + 32, Filled(), 32);
    Clean(mine);
}
void shared_cache_line_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    Mixed();
    if (BlockIdx() == 0) SetGm(w, 1);
    if (BlockIdx() == 0) Clean(w);
    SyncAll();
    if (BlockIdx() == 1) SetGm(w + 4, 1);
    if (BlockIdx() == 1) Clean(w + 4);
}

void clean_takes_the_rest_of_the_line_clean(uint8_t*, uint8_t* y, uint8_t*)
{
    uint8_t* line = y + 64 * BlockIdx();
    SetGm(line, 1);
    SetGm(line + 60, 2);
    Clean(line);
}

}  // extern "C"
