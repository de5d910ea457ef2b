// Happens-before by vector clocks over the four pipes that a vector core has.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "types.h"

namespace ascendc_host {

constexpr int kSlots = 4;  // S, V, MTE2, MTE3
constexpr int kNoSlot = -1;
constexpr std::array<Pipe, kSlots> kSlotPipes = {Pipe::kS, Pipe::kV, Pipe::kMte2, Pipe::kMte3};

constexpr int SlotOf(Pipe pipe) {
    for (int slot = 0; slot < kSlots; ++slot) {
        if (kSlotPipes[slot] == pipe) return slot;
    }
    return kNoSlot;
}

constexpr int kScalar = SlotOf(Pipe::kS);

// clock[slot] = the newest instruction of that pipe (numbered from 1) that is known to have finished.
struct Clock {
    std::array<uint32_t, kSlots> seq = {};

    uint32_t operator[](int slot) const { return seq[slot]; }
    uint32_t& operator[](int slot) { return seq[slot]; }

    void Join(const Clock& other) {
        for (int slot = 0; slot < kSlots; ++slot) seq[slot] = std::max(seq[slot], other.seq[slot]);
    }
};

}  // namespace ascendc_host
