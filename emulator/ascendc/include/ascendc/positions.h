// What logical positions stand for: memories, and the pipes that data pass through between two of them.
#pragma once

#include "enums.h"
#include "machine/core.h"

namespace ascendc_host {

constexpr const char* PositionName(AscendC::TPosition position)
{
    using AscendC::TPosition;
    switch (position) {
        case TPosition::A1:
            return "A1";
        case TPosition::A2:
            return "A2";
        case TPosition::B1:
            return "B1";
        case TPosition::B2:
            return "B2";
        case TPosition::CO1:
            return "CO1";
        case TPosition::VECIN:
            return "VECIN";
        case TPosition::VECOUT:
            return "VECOUT";
        case TPosition::VECCALC:
            return "VECCALC";
        default:
            return "";
    }
}

constexpr bool IsLocalPosition(AscendC::TPosition position) { return PositionName(position)[0] != '\0'; }

constexpr Memory MemoryOf(AscendC::TPosition position)
{
    using AscendC::TPosition;
    switch (position) {
        case TPosition::A1:
            return Memory::kL1;
        case TPosition::B1:
            return Memory::kL1;
        case TPosition::A2:
            return Memory::kL0A;
        case TPosition::B2:
            return Memory::kL0B;
        case TPosition::CO1:
            return Memory::kL0C;
        default:
            return Memory::kUb;
    }
}

constexpr bool IsUbOrGm(AscendC::TPosition position)
{
    using AscendC::TPosition;
    return position == TPosition::GM || position == TPosition::VECIN || position == TPosition::VECOUT ||
           position == TPosition::VECCALC;
}

// The ways that data take through a queue. CO2 stands for global memory on the 910B.
constexpr bool IsQueuePath(AscendC::TPosition from, AscendC::TPosition to)
{
    using AscendC::TPosition;
    switch (to) {
        case TPosition::A1:
        case TPosition::B1:
            return from == TPosition::GM;
        case TPosition::A2:
            return from == TPosition::A1;
        case TPosition::B2:
            return from == TPosition::B1;
        case TPosition::CO2:
            return from == TPosition::CO1;
        default:
            return IsUbOrGm(from) && IsUbOrGm(to) && !(from == TPosition::GM && to == TPosition::GM);
    }
}

// The position of the queue's buffers: the target, unless data leave the core from here.
constexpr AscendC::TPosition BufferPosition(AscendC::TPosition from, AscendC::TPosition to)
{
    using AscendC::TPosition;
    const bool target = from == TPosition::GM || to == TPosition::A2 || to == TPosition::B2;
    return target ? to : from;
}

constexpr PipePair UbQueueEvent(bool fromGm, bool toGm)
{
    const Pipe producer = fromGm ? Pipe::kMte2 : toGm ? Pipe::kV : Pipe::kMte2;
    const Pipe consumer = toGm ? Pipe::kMte3 : fromGm ? Pipe::kV : Pipe::kMte3;
    return {producer, consumer};
}

// The event of a flag that hands a buffer over, from a queue's positions.
constexpr PipePair QueueEvent(AscendC::TPosition from, AscendC::TPosition to, bool forward)
{
    using AscendC::TPosition;
    PipePair pipes = UbQueueEvent(from == TPosition::GM, to == TPosition::GM);
    if (to == TPosition::A1 || to == TPosition::B1) pipes = {Pipe::kMte2, Pipe::kMte1};
    if (to == TPosition::A2 || to == TPosition::B2) pipes = {Pipe::kMte1, Pipe::kM};
    if (from == TPosition::CO1) pipes = {Pipe::kM, Pipe::kFix};
    return forward ? pipes : PipePair{pipes.to, pipes.from};
}

}  // namespace ascendc_host
