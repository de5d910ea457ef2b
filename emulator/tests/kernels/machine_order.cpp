// The order of the pipes of one core: kernels with one error each and clean neighbours, marked as in
// machine_checks.cpp.
#include "machine_steps.h"

extern "C" {

// ---- Unified Buffer ------------------------------------------------------------------------------------------------

void read_after_write(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    const LocalView result = Buffer();
    CopyIn(tile, x);
    Increment(result, tile);  // finds ReadAfterWrite
}
void read_after_write_clean(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    const LocalView result = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kV);
    Increment(result, tile);
}
void flag_before_the_write(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    const LocalView result = Buffer();
    Set(Pipe::kMte2, Pipe::kV);
    CopyIn(tile, x);
    Wait(Pipe::kMte2, Pipe::kV);
    Increment(result, tile);  // finds ReadAfterWrite
}
void flag_of_another_pipe(uint8_t* x, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kV);
    CopyOut(y, tile);  // finds ReadAfterWrite
}
void order_passed_on_by_a_pipe_clean(uint8_t* x, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kV);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(y, tile);
}

void read_after_write_in_one_pipe(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Increment(tile, tile);  // finds ReadAfterWrite WriteAfterWrite
}
void read_after_write_in_one_pipe_clean(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Barrier(Pipe::kV);
    Increment(tile, tile);
}
void barrier_of_another_pipe(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    const LocalView result = Buffer();
    Fill(tile);
    Barrier(Pipe::kMte2);
    Increment(result, tile);  // finds ReadAfterWrite
}
void barrier_of_all_pipes_clean(uint8_t* x, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    Barrier(Pipe::kAll);
    Increment(tile, tile);
    Barrier(Pipe::kAll);
    CopyOut(y, tile);
}

void write_after_write(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    Fill(tile);  // finds WriteAfterWrite
}
void write_after_write_in_one_pipe(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    CopyIn(tile, x + kTile);  // finds WriteAfterWrite
}
void write_after_write_clean(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    Barrier(Pipe::kMte2);
    CopyIn(tile, x + kTile);
    Order(Pipe::kMte2, Pipe::kV);
    Fill(tile);
}

void write_after_read(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    const LocalView result = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kV);
    Increment(result, tile);
    CopyIn(tile, x + kTile);  // finds WriteAfterRead WriteAfterWrite
}
void write_after_read_clean(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    const LocalView result = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kV);
    Increment(result, tile);
    Order(Pipe::kV, Pipe::kMte2);
    CopyIn(tile, x + kTile);
}
void write_after_read_in_one_pipe_clean(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    const LocalView result = Buffer();
    Fill(tile);
    Barrier(Pipe::kV);
    Increment(result, tile);
    Fill(tile);
}

// ---- parts of a block ----------------------------------------------------------------------------------------------

void older_write_in_a_block(uint8_t*, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile, 0, 8);
    Set(Pipe::kV, Pipe::kMte3);
    Fill(tile, 8, 8);
    Wait(Pipe::kV, Pipe::kMte3);
    CopyOut(y, tile, 16);  // finds ReadAfterWrite
}
void older_write_in_a_block_clean(uint8_t*, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile, 0, 8);
    Set(Pipe::kV, Pipe::kMte3);
    Fill(tile, 8, 8);
    Wait(Pipe::kV, Pipe::kMte3);
    CopyOut(y, tile, 8);
}
void newest_write_hides_the_older_clean(uint8_t*, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    for (uint32_t lane = 0; lane < 8; ++lane) Fill(tile, 4 * lane, 4);
    Barrier(Pipe::kV);
    Fill(tile, 0, 32);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(y, tile, 32);
}
void older_write_is_still_seen(uint8_t*, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    for (uint32_t lane = 0; lane < 8; ++lane) Fill(tile, 4 * lane, 4);
    CopyOut(y, tile, 4);  // finds ReadAfterWrite
}

// ---- the scalar unit -----------------------------------------------------------------------------------------------

void scalar_read_after_vector(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    GetValue(tile);  // finds ReadAfterWrite
}
void scalar_read_after_copy(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kV);
    GetValue(tile);  // finds ReadAfterWrite
}
void scalar_read_clean(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kS);
    GetValue(tile);
}
void scalar_write_before_vector(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    SetValue(tile, 0, 1);
    Increment(tile, tile, 4);  // finds ReadAfterWrite WriteAfterWrite
}
void scalar_write_before_vector_clean(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    SetValue(tile, 0, 1);
    GetValue(tile, 0);
    Order(Pipe::kS, Pipe::kV);
    Increment(tile, tile, 4);
}
void scalar_read_before_vector_write(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kS);
    GetValue(tile);
    Fill(tile);  // finds WriteAfterRead
}
void scalar_passes_order_on_clean(uint8_t* x, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    const LocalView result = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kS);
    CopyOut(y, tile);
    Increment(result, tile);
}
void scalar_does_not_pass_its_own_writes_on(uint8_t*, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    SetValue(tile, 0, 1);
    Order(Pipe::kMte2, Pipe::kS);
    CopyOut(y, tile, 4);  // finds ReadAfterWrite
}

void stale_register(uint8_t*, uint8_t*, uint8_t*)
{
    {
        Instruction gather(Pipe::kV, "GatherMask", Where::Here());
        TheCore().WriteRegister(Register::kGatherMaskCount, 7);
    }
    TheCore().ReadRegister(Register::kGatherMaskCount, Where::Here());  // finds StaleRegister
}
void stale_register_after_a_second_write(uint8_t*, uint8_t*, uint8_t*)
{
    for (int i = 0; i < 2; ++i) {
        Instruction gather(Pipe::kV, "GatherMask", Where::Here());
        TheCore().WriteRegister(Register::kGatherMaskCount, 7);
        if (i == 0) Set(Pipe::kV, Pipe::kS);
    }
    Wait(Pipe::kV, Pipe::kS);
    TheCore().ReadRegister(Register::kGatherMaskCount, Where::Here());  // finds StaleRegister
}
void stale_register_clean(uint8_t*, uint8_t*, uint8_t*)
{
    {
        Instruction gather(Pipe::kV, "GatherMask", Where::Here());
        TheCore().WriteRegister(Register::kGatherMaskCount, 7);
    }
    Order(Pipe::kV, Pipe::kS);
    if (TheCore().ReadRegister(Register::kGatherMaskCount, Where::Here()) != 7) throw std::exception();
}

// ---- global memory -------------------------------------------------------------------------------------------------

void gm_read_after_write(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Buffer();
    const LocalView other = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(w, tile, 100);
    CopyIn(other, w + 99, 1);  // finds ReadAfterWrite
}
void gm_read_after_write_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Buffer();
    const LocalView other = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(w, tile, 100);
    Order(Pipe::kMte3, Pipe::kMte2);
    CopyIn(other, w + 99, 1);
}
void gm_neighbours_in_a_block_clean(uint8_t*, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(y, tile, 5);
    CopyOut(y + 5, tile, 5);
}
void gm_write_after_write(uint8_t*, uint8_t* y, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(y, tile, 5);
    CopyOut(y + 4, tile, 5);  // finds WriteAfterWrite
}
void gm_write_after_read(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Buffer();
    const LocalView other = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(w, tile);
    Order(Pipe::kMte3, Pipe::kMte2);
    CopyIn(other, w);
    CopyOut(w, tile);  // finds WriteAfterRead WriteAfterWrite
}
void gm_write_after_read_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    const LocalView tile = Buffer();
    const LocalView other = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(w, tile);
    Order(Pipe::kMte3, Pipe::kMte2);
    CopyIn(other, w);
    Order(Pipe::kMte2, Pipe::kMte3);
    CopyOut(w, tile);
}

// ---- flags ---------------------------------------------------------------------------------------------------------

void event_id_of_the_system(uint8_t*, uint8_t*, uint8_t*)
{
    Order(Pipe::kMte2, Pipe::kV, 6);  // finds EventId
}
void event_id_out_of_range(uint8_t*, uint8_t*, uint8_t*)
{
    Set(Pipe::kMte2, Pipe::kV, 8);  // finds EventId
}
void event_ids_used_up(uint8_t*, uint8_t*, uint8_t*)
{
    for (int i = 0; i < 9; ++i) TheCore().AllocateEventId(Pipe::kMte2, Pipe::kV, Where::Here());  // finds EventId
}
void event_id_clean(uint8_t*, uint8_t*, uint8_t*)
{
    for (int i = 0; i < 20; ++i) {
        const int id = TheCore().AllocateEventId(Pipe::kMte2, Pipe::kV, Where::Here());
        TheCore().ReleaseEventId(Pipe::kMte2, Pipe::kV, id);
    }
    for (int i = 0; i < 8; ++i) {
        const int id = TheCore().AllocateEventId(Pipe::kMte2, Pipe::kV, Where::Here());
        Order(Pipe::kMte2, Pipe::kV, id);
    }
    Order(Pipe::kV, Pipe::kMte3, 5);
}
void flag_set_twice(uint8_t*, uint8_t*, uint8_t*)
{
    Set(Pipe::kMte2, Pipe::kV, 1);
    Set(Pipe::kMte2, Pipe::kV, 1);  // finds FlagSetTwice
    Wait(Pipe::kMte2, Pipe::kV, 1);
}
void flag_set_twice_clean(uint8_t*, uint8_t*, uint8_t*)
{
    Set(Pipe::kMte2, Pipe::kV, 1);
    Set(Pipe::kMte2, Pipe::kV, 2);
    Set(Pipe::kMte2, Pipe::kMte3, 1);
    Wait(Pipe::kMte2, Pipe::kV, 1);
    Wait(Pipe::kMte2, Pipe::kV, 2);
    Wait(Pipe::kMte2, Pipe::kMte3, 1);
}
void wait_without_set(uint8_t*, uint8_t*, uint8_t*)
{
    Set(Pipe::kMte2, Pipe::kV, 1);
    Wait(Pipe::kMte2, Pipe::kV, 0);  // finds WaitWithoutSet
    GetValue(Buffer());              // is not reached
}
void flag_never_waited(uint8_t*, uint8_t*, uint8_t*)
{
    Set(Pipe::kMte2, Pipe::kV);  // finds FlagNeverWaited
}

}  // extern "C"
