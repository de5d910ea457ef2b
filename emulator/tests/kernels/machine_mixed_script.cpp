// Executes lists of machine operations on the three cores of a block, as machine_script.cpp does on one.
//
// The script is int32 [count of the cube core, of the two vector cores, then each core's count * 5]: operation, pipe,
// offset, bytes, flag. Findings get 1000 * core + the number of the operation as their line.
#include "machine_steps.h"

namespace {

enum Operation { kGmRead, kGmWrite, kSetFlag, kWaitFlag, kBarrier };

struct Step {
    int32_t operation, pipe, offset, bytes, flag;
};

Pipe PipeOf(const Step& step)
{
    if (step.pipe == 0) return Pipe::kMte2;
    return IsCube() ? Pipe::kFix : Pipe::kMte3;
}

void Touch(const Step& step, uint8_t* gm, Where where)
{
    Instruction instruction(PipeOf(step), "Touch", where);
    const auto bytes = static_cast<uint64_t>(step.bytes);
    if (step.operation == kGmRead)
        instruction.ReadGm(gm + step.offset, bytes);
    else
        instruction.WriteGm(gm + step.offset, bytes);
    instruction.DmaCost(bytes);
}

}  // namespace

extern "C" void machine_mixed_script(uint8_t* script, uint8_t* gm)
{
    OneCubeTwoVectors();
    const auto* words = reinterpret_cast<const int32_t*>(script);
    const auto core = static_cast<int32_t>(IsCube() ? 0 : 1 + SubBlock());
    const auto* steps = reinterpret_cast<const Step*>(words + 3);
    for (int32_t before = 0; before < core; ++before) steps += words[before];
    for (int32_t i = 0; i < words[core]; ++i) {
        const Step& step = steps[i];
        const Where where = {"script", 1000 * core + i};
        if (step.operation == kSetFlag)
            Signal(PipeOf(step), step.flag, where);
        else if (step.operation == kWaitFlag)
            Await(step.flag, where);
        else if (step.operation == kBarrier)
            Barrier(Pipe::kAll, where);
        else
            Touch(step, gm, where);
    }
}
