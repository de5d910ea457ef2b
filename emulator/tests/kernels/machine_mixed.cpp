// Cube cores, and the flags between the cores of a block: one error each and clean neighbours, marked as in
// machine_checks.cpp. Every kernel runs on two blocks; w is the workspace, of which each block has 1024 bytes.
#include "machine_steps.h"

namespace {

constexpr int kReady = 0;
constexpr int kFree = 1;

uint8_t* Mine(uint8_t* w) { return w + 1024 * (TheCore().BlockIdx() / (IsCube() ? 1 : 2)); }

// An L0C tile that M has written.
LocalView Product()
{
    const LocalView tile = BufferIn(Memory::kL0C);
    Multiply(tile);
    Order(Pipe::kM, Pipe::kFix);
    return tile;
}

// The cube core leaves a tile for each vector core of its block.
void Produce(const LocalView& tile, uint8_t* w)
{
    FixOut(Mine(w), tile);
    FixOut(Mine(w) + kTile, tile);
}

// Bytes that are read too early are not unwritten as well.
void Initialise(const LocalView& tile, uint8_t* w)
{
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(Mine(w) + SubBlock() * kTile, tile);
    Signal(Pipe::kMte3, kFree);
}

}  // namespace

extern "C" {

// ---- flags between the cores of a block ----------------------------------------------------------------------------

void no_flag(uint8_t*, uint8_t*, uint8_t* w)
{
    OneCubeTwoVectors();
    if (IsCube()) return FixOut(Mine(w), Product());
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    if (SubBlock() == 0) CopyOut(Mine(w), tile);  // finds CrossCore
}
void flag_clean(uint8_t*, uint8_t* y, uint8_t* w)
{
    OneCubeTwoVectors();
    if (IsCube()) {
        Produce(Product(), w);
        return Signal(Pipe::kFix, kReady);
    }
    const LocalView tile = Buffer();
    Await(kReady);
    CopyIn(tile, Mine(w) + SubBlock() * kTile);
    Order(Pipe::kMte2, Pipe::kMte3);
    CopyOut(y + TheCore().BlockIdx() * kTile, tile);
}

// ---- together with SyncAll -----------------------------------------------------------------------------------------

void cube_and_sync_all_clean(uint8_t*, uint8_t*, uint8_t* w)
{
    OneCubeTwoVectors();
    if (IsCube()) {
        Produce(Product(), w);
        return Signal(Pipe::kFix, kReady);
    }
    Await(kReady);
    SyncAll();
    CopyIn(Buffer(), w);
    CopyIn(Buffer(), w + 1024);
}
void cube_past_sync_all(uint8_t*, uint8_t*, uint8_t* w)
{
    OneCubeTwoVectors();
    if (IsCube()) {
        Await(kFree);
        Produce(Product(), w);
        return Signal(Pipe::kFix, kReady);
    }
    Initialise(Buffer(), w);
    SyncAll();
    Await(kReady);
    CopyIn(Buffer(), w);         // finds CrossCore
    CopyIn(Buffer(), w + 1024);  // finds CrossCore
}
void vector_cores_still_race(uint8_t*, uint8_t*, uint8_t* w)
{
    OneCubeTwoVectors();
    if (IsCube()) return;
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kMte3);
    SyncAll();
    CopyOut(w + 2048, tile);  // finds CrossCore
}

void cube_calls_sync_all(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) SyncAll();  // finds Unsupported
}

// ---- misuse of the flags -------------------------------------------------------------------------------------------

void flag_never_set(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (!IsCube()) Await(kReady);  // finds WaitWithoutSet
}
void flag_set_by_one_of_two(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) return Await(kFree);  // finds WaitWithoutSet
    if (SubBlock() == 0) Signal(Pipe::kV, kFree);
}
void flag_never_waited(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) Signal(Pipe::kFix, kReady);  // finds FlagNeverWaited
}
void flag_set_too_often(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    for (int i = 0; i < 16; ++i) {
        if (IsCube()) Signal(Pipe::kFix, kReady);  // finds FlagSetTwice
    }
    if (IsCube()) return Await(kFree);
    Signal(Pipe::kV, kFree);
    for (int i = 0; i < 16; ++i) Await(kReady);
}
void flag_set_often_clean(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    for (int i = 0; i < 15; ++i) {
        if (IsCube()) Signal(Pipe::kFix, kReady);
    }
    if (IsCube()) return Await(kFree);
    Signal(Pipe::kV, kFree);
    for (int i = 0; i < 15; ++i) Await(kReady);
}
void flag_id(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) Signal(Pipe::kFix, 11);  // finds EventId
}
void flag_mode(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) TheCore().CrossCoreSet(0, Pipe::kFix, kReady, Where::Here());  // finds Unsupported
}
void flag_of_a_foreign_pipe(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) Signal(Pipe::kV, kReady);  // finds Unsupported
}
void flag_without_a_cube(uint8_t*, uint8_t*, uint8_t*)
{
    Signal(Pipe::kMte3, kReady);  // finds Unsupported
}

// ---- what the two kinds of cores have ------------------------------------------------------------------------------

void unified_buffer_of_a_cube(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) Buffer();  // finds Unsupported
}
void l1_of_a_vector_core(uint8_t*, uint8_t*, uint8_t*)
{
    BufferIn(Memory::kL1);  // finds Unsupported
}
void l0c_capacity(uint8_t*, uint8_t*, uint8_t*)
{
    TheCore().DeclareKernelType(KernelType::kAicOnly, Where::Here());
    BufferIn(Memory::kL0A, 64 * 1024);
    BufferIn(Memory::kL0C, 128 * 1024);
    BufferIn(Memory::kL0C, 32);  // finds LocalCapacity
}
void vector_pipe_of_a_cube(uint8_t*, uint8_t*, uint8_t*)
{
    TheCore().DeclareKernelType(KernelType::kAicOnly, Where::Here());
    const LocalView tile = BufferIn(Memory::kL0C);
    Multiply(tile);
    Barrier(Pipe::kM);
    Fill(tile);  // finds Unsupported
}
void vector_flag_of_a_cube(uint8_t*, uint8_t*, uint8_t*)
{
    TheCore().DeclareKernelType(KernelType::kAicOnly, Where::Here());
    Set(Pipe::kV, Pipe::kMte2);  // finds Unsupported
}
void cube_pipes_without_a_flag(uint8_t*, uint8_t* y, uint8_t*)
{
    TheCore().DeclareKernelType(KernelType::kAicOnly, Where::Here());
    const LocalView tile = BufferIn(Memory::kL0C);
    Multiply(tile);
    FixOut(y + TheCore().BlockIdx() * kTile, tile);  // finds ReadAfterWrite
}
void cube_pipes_with_a_flag_clean(uint8_t*, uint8_t* y, uint8_t*)
{
    TheCore().DeclareKernelType(KernelType::kAicOnly, Where::Here());
    FixOut(y + TheCore().BlockIdx() * kTile, Product());
}
void type_of_the_key_wins_clean(uint8_t*, uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    TheCore().DeclareKernelType(0, KernelType::kAivOnly, Where::Here());
    Fill(Buffer());
}

}  // extern "C"
