// Happens-before by vector clocks over the pipes of a core.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "types.h"

namespace ascendc_host {

constexpr int kSlots = 5;
constexpr int kNoSlot = -1;
// A core has either vector or cube pipes, so that V and M, MTE3 and FIX share a slot. Pipe::kCount: none.
constexpr std::array<Pipe, kSlots> kVectorPipes = {Pipe::kS, Pipe::kV, Pipe::kMte2, Pipe::kMte3, Pipe::kCount};
constexpr std::array<Pipe, kSlots> kCubePipes = {Pipe::kS, Pipe::kM, Pipe::kMte2, Pipe::kFix, Pipe::kMte1};

constexpr Pipe PipeAt(CoreKind kind, int slot) { return (kind == CoreKind::kVector ? kVectorPipes : kCubePipes)[slot]; }

// kNoSlot where this kind of core has no such pipe.
constexpr int SlotOf(CoreKind kind, Pipe pipe)
{
    for (int slot = 0; slot < kSlots; ++slot) {
        if (pipe != Pipe::kCount && PipeAt(kind, slot) == pipe) return slot;
    }
    return kNoSlot;
}

constexpr int kScalar = 0;   // in every core
constexpr int kCompute = 1;  // V or M

// clock[slot] = the newest instruction of that pipe (numbered from 1) that is known to have finished.
struct Clock {
    std::array<uint32_t, kSlots> seq = {};

    uint32_t operator[](int slot) const { return seq[slot]; }
    uint32_t& operator[](int slot) { return seq[slot]; }

    void Join(const Clock& other)
    {
        for (int slot = 0; slot < kSlots; ++slot) seq[slot] = std::max(seq[slot], other.seq[slot]);
    }
};

}  // namespace ascendc_host
