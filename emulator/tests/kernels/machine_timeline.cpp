// Kernels whose time can be worked out by hand. x is an input, y an output.
#include "machine_steps.h"

namespace {

constexpr uint32_t kLargeTile = 4096;

void Fills(int count)
{
    for (int i = 0; i < count; ++i) Fill(Buffer());
}

}  // namespace

extern "C" {

void copy_then_vector(uint8_t* x, uint8_t*)
{
    const LocalView tile = Buffer();
    CopyIn(tile, x);
    Order(Pipe::kMte2, Pipe::kV);
    Increment(tile, tile);
}

void double_buffer(uint8_t* x, uint8_t*)
{
    const LocalView tiles[2] = {Buffer(kLargeTile), Buffer(kLargeTile)};
    for (int i = 0; i < 4; ++i) {
        const int slot = i % 2;
        if (i >= 2) Wait(Pipe::kV, Pipe::kMte2, slot);
        CopyIn(tiles[slot], x + i * kLargeTile, kLargeTile);
        Order(Pipe::kMte2, Pipe::kV, slot);
        Increment(tiles[slot], tiles[slot], kLargeTile);
        if (i < 2) Set(Pipe::kV, Pipe::kMte2, slot);
    }
}

void equal_copies(uint8_t* x, uint8_t*) { CopyIn(Buffer(1600), x, 1600); }
void unequal_copies(uint8_t* x, uint8_t*) { CopyIn(Buffer(1600), x, BlockIdx() == 0 ? 1600 : 800); }

void sync_all(uint8_t*, uint8_t*)
{
    Mixed();
    Fills(BlockIdx() == 0 ? 1 : 3);
    SyncAll();
    Fills(1);
}

void one_fill(uint8_t*, uint8_t*) { Fills(1); }

void scalar_waits(uint8_t*, uint8_t*)
{
    const LocalView tile = Buffer();
    Fill(tile);
    Order(Pipe::kV, Pipe::kS);
    GetValue(tile, 0);
    GetValue(tile, 4);
    Fills(1);
}

void scalar_gm(uint8_t* x, uint8_t*)
{
    GetGm(x);
    GetGm(x + 60);
    GetGm(x + 64);
}

void bank_conflicts(uint8_t*, uint8_t*)
{
    Instruction add(Pipe::kV, "Add", Where::Here());
    add.ComputeCost(10, 2);
    add.VectorConflicts(7);
}

// ---- blocks of a cube core and two vector cores --------------------------------------------------------------------

void cube_to_vectors(uint8_t*, uint8_t* y)
{
    OneCubeTwoVectors();
    if (IsCube()) {
        const LocalView tile = BufferIn(Memory::kL0C);
        Multiply(tile);
        Order(Pipe::kM, Pipe::kFix);
        FixOut(y, tile);
        return Signal(Pipe::kFix, 0);
    }
    const LocalView tile = Buffer();
    Await(0);
    CopyIn(tile, y);
}

void vectors_to_cube(uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (!IsCube()) {
        Fills(SubBlock() == 0 ? 1 : 3);
        return Signal(Pipe::kV, 0);
    }
    const LocalView tile = BufferIn(Memory::kL0C);
    Await(0);
    Multiply(tile);
}

void cube_and_vector_copies(uint8_t* x, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) CopyIn(BufferIn(Memory::kL1, 1600), x, 1600);
    if (!IsCube() && SubBlock() == 0) CopyIn(Buffer(1600), x, 1600);
}

void one_fill_in_each_core(uint8_t*, uint8_t*)
{
    OneCubeTwoVectors();
    if (IsCube()) return Multiply(BufferIn(Memory::kL0C));
    Fills(1);
}

void slow_copy(uint8_t* x, uint8_t*)
{
    const LocalView tile = Buffer();
    Instruction copy(Pipe::kMte2, "CopyIn", Where::Here());
    std::memcpy(copy.Write(tile, 0, 64), copy.ReadGm(x, 64), 64);
    copy.DmaCost(64, 77);
}

void workspace_and_back(uint8_t*, uint8_t*, uint8_t* workspace)
{
    const LocalView tile = Buffer(1600);
    Fill(tile, 0, 1600);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(workspace, tile, 1600);
    Order(Pipe::kMte3, Pipe::kMte2);
    CopyIn(Buffer(1600), workspace, 1600);
}

void cube_copy_out(uint8_t*, uint8_t* y)
{
    OneCubeTwoVectors();
    if (!IsCube()) return;
    const LocalView tile = BufferIn(Memory::kL0C, 1600);
    Multiply(tile, 1600);
    Order(Pipe::kM, Pipe::kFix);
    FixOut(y, tile, 1600);
}

void copy_past_the_l2(uint8_t* x, uint8_t*)
{
    GmView view;
    view.base = x;
    view.pastL2 = true;
    const LocalView tile = Buffer(1600);
    Instruction copy(Pipe::kMte2, "CopyIn", Where::Here());
    std::memcpy(copy.Write(tile, 0, 1600), copy.ReadGm(view, 0, 1600), 1600);
    copy.DmaCost(1600);
}

void two_rows(uint8_t* x, uint8_t*)
{
    const LocalView tile = Buffer(512);
    Instruction copy(Pipe::kMte2, "CopyIn", Where::Here());
    for (int row = 0; row < 2; ++row)
        std::memcpy(copy.Write(tile, row * 256, 256), copy.ReadGm(x + row * 1024, 256), 256);
    copy.DmaCost(512);
    copy.GmRows(2, 256);
}

void copies_of_own_lines(uint8_t* x, uint8_t*) { CopyIn(Buffer(), x + BlockIdx() * 512); }

void faulty(uint8_t*, uint8_t*) { Wait(Pipe::kV, Pipe::kS); }

}  // extern "C"
