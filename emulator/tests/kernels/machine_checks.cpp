// Kernels with one error each, and beside each its clean neighbour. A comment "finds X" marks the line at which the
// check X has to report; a kernel without such a comment has to be clean. x is an input, y an output, w workspace.
#include "machine/local_memory.h"
#include "machine_steps.h"

extern "C" {

// ---- Unified Buffer ------------------------------------------------------------------------------------------------

void ub_capacity(uint8_t*, uint8_t*, uint8_t*)
{
    Buffer(kUbUserBytes);
    Buffer(1);  // finds LocalCapacity
}
void ub_capacity_clean(uint8_t*, uint8_t*, uint8_t*)
{
    Buffer(kUbUserBytes - 32);
    Buffer(1);
}

void ub_bounds(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Buffer();
    CopyIn(tile, x, kTile + 32);  // finds LocalBounds
}
void ub_bounds_of_a_part(uint8_t*, uint8_t*, uint8_t*)
{
    LocalView part = Buffer();
    part.size = 64;
    Fill(part, 33, 32);  // finds LocalBounds
}
void ub_bounds_clean(uint8_t*, uint8_t*, uint8_t*)
{
    LocalView part = Buffer();
    part.size = 64;
    Fill(part, 32, 32);
}

void uninitialised(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile, 0, kTile - 4);
    Barrier(Pipe::kV);
    Increment(tile, tile);  // finds Uninitialised
}
void uninitialised_clean(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile, 0, kTile - 4);
    Barrier(Pipe::kV);
    Increment(tile, tile, kTile - 4);
}
void uninitialised_in_the_next_generation(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView old = Buffer();
    Fill(old);
    Barrier(Pipe::kV);
    TheCore().SetBufferState(old.buffer, BufferState::kFree);
    TheCore().SetBufferState(old.buffer, BufferState::kAllocated);
    const LocalView tile = TheCore().WholeBuffer(old.buffer);
    Increment(tile, tile);  // finds Uninitialised
}
void uninitialised_padding(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Barrier(Pipe::kV);
    {
        Instruction pad(Pipe::kV, "Pad", Where::Here());
        pad.WriteUndefined(tile, kTile - 8, 8);
    }
    Barrier(Pipe::kV);
    Increment(tile, tile, kTile - 8);
    Barrier(Pipe::kV);
    Increment(tile, tile, kTile - 7);  // finds Uninitialised
}
void initialised_after_dequeue_clean(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Barrier(Pipe::kV);
    TheCore().SetBufferState(tile.buffer, BufferState::kEnqueued);
    TheCore().SetBufferState(tile.buffer, BufferState::kAllocated);
    Increment(tile, tile);
}

void alignment(uint8_t*, uint8_t*, uint8_t*)
{
    LocalView part = Buffer();
    part.offset += 4;
    part.size -= 4;
    Instruction fill(Pipe::kV, "Fill", Where::Here());  // finds Alignment
    fill.CheckAligned(part, 32, "destination");
}
void alignment_clean(uint8_t*, uint8_t*, uint8_t*)
{
    LocalView part = Buffer();
    part.offset += 32;
    part.size -= 32;
    Instruction fill(Pipe::kV, "Fill", Where::Here());
    fill.CheckAligned(part, 32, "destination");
}

// ---- global memory -------------------------------------------------------------------------------------------------

void gm_bounds(uint8_t* x, uint8_t*, uint8_t*)
{
    CopyIn(Buffer(), x + 4096 - kTile + 1);  // finds GmBounds
}
void gm_bounds_before(uint8_t* x, uint8_t*, uint8_t*)
{
    CopyIn(Buffer(), x - 1);  // finds GmBounds
}
void gm_bounds_of_a_tensor(uint8_t* x, uint8_t*, uint8_t*)
{
    Instruction copy(Pipe::kMte2, "CopyIn", Where::Here());  // finds GmBounds
    copy.ReadGm(GmView{x, 512}, 512 - kTile + 1, kTile);
}
void gm_bounds_null(uint8_t*, uint8_t*, uint8_t*)
{
    CopyIn(Buffer(), nullptr);  // finds GmBounds
}
void gm_bounds_clean(uint8_t* x, uint8_t*, uint8_t*)
{
    CopyIn(Buffer(), x + 4096 - kTile);
    Instruction copy(Pipe::kMte2, "CopyIn", Where::Here());
    copy.ReadGm(GmView{x, 512}, 512 - kTile, kTile);
}

void gm_uninitialised(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(w, tile, 128);
    Order(Pipe::kMte3, Pipe::kMte2);
    CopyIn(tile, w + 64, 65);  // finds GmUninitialised
}
void gm_uninitialised_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(w, tile, 128);
    Order(Pipe::kMte3, Pipe::kMte2);
    CopyIn(tile, w + 64, 64);
}

void gm_read_only(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(x, tile);  // finds GmReadOnly
}
void gm_read_only_by_scalar(uint8_t* x, uint8_t*, uint8_t*)
{
    SetGm(x, 1);  // finds GmReadOnly
    Clean(x);
}
void gm_read_only_clean(uint8_t*, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(y, tile);
}

// ---- tensors and queues --------------------------------------------------------------------------------------------

void use_after_free(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    TheCore().SetBufferState(tile.buffer, BufferState::kFree);
    Fill(tile);  // finds UseAfterFree
}
void use_of_an_older_generation(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    TheCore().SetBufferState(tile.buffer, BufferState::kFree);
    TheCore().SetBufferState(tile.buffer, BufferState::kAllocated);
    Fill(tile);  // finds UseAfterFree
}
void use_after_reset(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    TheCore().ResetLocal();
    Fill(tile);  // finds UseAfterFree
}
void use_of_the_new_generation_clean(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    TheCore().SetBufferState(tile.buffer, BufferState::kFree);
    TheCore().SetBufferState(tile.buffer, BufferState::kAllocated);
    Fill(TheCore().WholeBuffer(tile.buffer));
    TheCore().ResetLocal();
    Buffer(kUbUserBytes);
}

void queue(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    TheCore().SetBufferState(tile.buffer, BufferState::kEnqueued);
    Fill(tile);  // finds Queue
}
void queue_clean(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    TheCore().SetBufferState(tile.buffer, BufferState::kEnqueued);
    TheCore().SetBufferState(tile.buffer, BufferState::kAllocated);
    Fill(tile);
}

// ---- the rest ------------------------------------------------------------------------------------------------------

void unsupported_pipe(uint8_t*, uint8_t*, uint8_t*)
{
    Instruction multiply(Pipe::kM, "Mmad", Where::Here());  // finds Unsupported
}
void unsupported_flag(uint8_t*, uint8_t*, uint8_t*)
{
    Set(Pipe::kMte1, Pipe::kM);  // finds Unsupported
}
void supported_clean(uint8_t*, uint8_t*, uint8_t*)
{
    Barrier(Pipe::kMte1);  // nothing to wait for
    Order(Pipe::kMte2, Pipe::kMte3);
}

}  // extern "C"
