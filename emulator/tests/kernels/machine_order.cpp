// The order of the pipes of one core: what findings say, what random programs (machine_script.cpp) do not have, and
// misuse of flags. Marked as in machine_checks.cpp.
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
void read_after_write_in_one_pipe(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Increment(tile, tile);  // finds ReadAfterWrite WriteAfterWrite
}
void write_after_write_in_one_pipe(uint8_t* x, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    CopyIn(tile, x + kTile);  // finds WriteAfterWrite
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

// ---- the scalar unit -----------------------------------------------------------------------------------------------

void scalar_read_after_vector(uint8_t*, uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    GetValue(tile);  // finds ReadAfterWrite
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
