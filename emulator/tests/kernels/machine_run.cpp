// Kernels for the tests of the launcher and of run_kernel.
#include <cstring>
#include <stdexcept>

#include "machine_steps.h"

namespace {

LocalView Copied(const uint8_t* from, uint32_t bytes)
{
    const LocalView tile = Buffer(bytes);
    CopyIn(tile, from, bytes);
    Order(Pipe::kMte2, Pipe::kMte3);
    return tile;
}

template <typename Value>
Value ReadAs(const uint8_t* from)
{
    Value value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

}  // namespace

extern "C" {

void copy_64_bytes(uint8_t* x, uint8_t* y) { CopyOut(y, Copied(x, 64), 64); }

// y[i] = x[i * stride], elements of `width` bytes; the tiling data is three int32: width, stride, count
void copy_strided(uint8_t* x, uint8_t* y, uint8_t* tiling)
{
    const auto width = ReadAs<int32_t>(tiling);
    const auto stride = ReadAs<int32_t>(tiling + 4);
    const auto count = ReadAs<int32_t>(tiling + 8);
    for (int32_t i = 0; i < count; ++i) {
        const LocalView element = Copied(x + i * stride * width, static_cast<uint32_t>(width));
        CopyOut(y + i * width, element, static_cast<uint32_t>(width));
    }
}

// y[0] = block count, y[1] = tiling key, y[2] = 1 if z is nullptr, y[3] = sum of the block indices; int32 each
void describe(uint8_t* y, uint8_t* z)
{
    if (BlockIdx() != 0) return;
    const LocalView tile = Buffer(16);
    SetValue(tile, 0, static_cast<uint32_t>(TheCore().BlockNum()));
    SetValue(tile, 4, static_cast<uint32_t>(TheCore().TilingKey()));
    SetValue(tile, 8, z == nullptr ? 1 : 0);
    Order(Pipe::kS, Pipe::kMte3);
    CopyOut(y, tile, 12);
}

// every block writes its index
void block_indices(uint8_t* y)
{
    const LocalView tile = Buffer(32);
    SetValue(tile, 0, static_cast<uint32_t>(BlockIdx()));
    Order(Pipe::kS, Pipe::kMte3);
    CopyOut(y + 4 * BlockIdx(), tile, 4);
}

// x[rows 0 and 1] of 64 bytes that lie `gap` bytes apart
void far_rows(uint8_t* x, uint8_t* y, uint8_t* tiling)
{
    const auto gap = ReadAs<int64_t>(tiling);
    CopyOut(y, Copied(x, 64), 64);
    CopyOut(y + 64, Copied(x + gap, 64), 64);
}

// writes the last 64 bytes of the workspace and reads them back, then reads from 32 bytes before what it wrote
void far_workspace(uint8_t* w, uint8_t* tiling)
{
    uint8_t* end = w + ReadAs<int64_t>(tiling) - 64;
    const LocalView tile = Buffer(64);
    Fill(tile, 0, 64);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(end, tile, 64);
    Order(Pipe::kMte3, Pipe::kMte2);
    CopyIn(tile, end, 64);
    CopyIn(Buffer(64), end - 32, 64);
}

// reads before it writes, and so shows what outputs and workspace start with
void uninitialised_bytes(uint8_t* w, uint8_t* y) { CopyOut(y, Copied(w, 64), 64); }

void add_one_in_place(uint8_t* x)
{
    const LocalView tile = Buffer(64);
    CopyIn(tile, x, 64);
    Order(Pipe::kMte2, Pipe::kV);
    Increment(tile, tile, 64);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(x, tile, 64);
}

void throws(uint8_t*) { throw std::runtime_error("no such thing"); }

void flags_on_one_line(uint8_t* x, uint8_t* y)
{
    const LocalView tile = Buffer(64);
    CopyIn(tile, x, 64);
    // clang-format off
    Set(Pipe::kMte2, Pipe::kV); Wait(Pipe::kMte2, Pipe::kV);
    // clang-format on
    Increment(tile, tile, 64);
    Barrier(Pipe::kV);
    Order(Pipe::kV, Pipe::kMte3);
    CopyOut(y, tile, 64);
}

void forty(uint8_t* a0, uint8_t* a1, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*,
           uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*,
           uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*,
           uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t*, uint8_t* a39)
{
    CopyOut(a1, Copied(a0, 32), 32);
    CopyOut(a39, Copied(a0, 32), 32);
}

}  // extern "C"
