// Executes a list of machine operations, so that a test can compare the machine with a plain model of it.
//
// The script is a list of int32 [count, then count * 6]: operation, pipe, other pipe, offset, bytes, extra.
// Findings get the number of the operation as their line.
#include "machine_steps.h"

namespace {

enum Operation { kUbRead, kUbWrite, kGmRead, kGmWrite, kSetFlag, kWaitFlag, kBarrier };

constexpr Pipe kPipes[] = {Pipe::kS, Pipe::kV, Pipe::kMte2, Pipe::kMte3};

struct Step {
    int32_t operation, pipe, other, offset, bytes, extra;
};

void Touch(const Step& step, const LocalView& ub, uint8_t* gm, Where where)
{
    Instruction instruction(kPipes[step.pipe], "Touch", where);
    const auto offset = static_cast<uint64_t>(step.offset);
    const auto bytes = static_cast<uint64_t>(step.bytes);
    switch (step.operation) {
        case kUbRead:
            instruction.Read(ub, offset, bytes);
            break;
        case kUbWrite:
            instruction.Write(ub, offset, bytes);
            break;
        case kGmRead:
            instruction.ReadGm(gm + offset, bytes);
            break;
        default:
            instruction.WriteGm(gm + offset, bytes);
            break;
    }
    if (kPipes[step.pipe] == Pipe::kV)
        instruction.ComputeCost(step.extra, 1);
    else if (kPipes[step.pipe] != Pipe::kS)
        instruction.DmaCost(static_cast<uint64_t>(step.extra));
    else
        instruction.ScalarCost(ScalarAccess::kUbRead);
}

}  // namespace

extern "C" void machine_script(uint8_t* script, uint8_t* gm)
{
    const auto* words = reinterpret_cast<const int32_t*>(script);
    const auto* steps = reinterpret_cast<const Step*>(words + 1);
    const LocalView ub = Buffer(1024);
    for (int32_t i = 0; i < words[0]; ++i) {
        const Step& step = steps[i];
        const Where where = {"script", i};
        const Pipe pipe = kPipes[step.pipe];
        if (step.operation == kSetFlag)
            Set(pipe, kPipes[step.other], step.extra, where);
        else if (step.operation == kWaitFlag)
            Wait(pipe, kPipes[step.other], step.extra, where);
        else if (step.operation == kBarrier)
            Barrier(step.extra == 1 ? Pipe::kAll : pipe, where);
        else
            Touch(step, ub, gm, where);
    }
}
