// Steps of a replay: the names of instructions as numbers, and reading the steps from global memory.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "kernel_operator.h"

// FNV-1a, as replay.hash_of has it.
constexpr uint64_t Name(const char* text)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (; *text != 0; ++text) hash = (hash ^ static_cast<uint8_t>(*text)) * 0x100000001b3;
    return hash;
}

// `Step` has only fields of 64 bits.
template <typename Step, typename Run>
__aicore__ inline void ForEachStep(GM_ADDR steps, GM_ADDR count, Run run)
{
    constexpr uint32_t fields = sizeof(Step) / sizeof(uint64_t);
    AscendC::GlobalTensor<uint64_t> words;
    AscendC::GlobalTensor<uint64_t> length;
    length.SetGlobalBuffer((__gm__ uint64_t*)count, 1);
    const uint32_t wordCount = static_cast<uint32_t>(length.GetValue(0)) * fields;
    words.SetGlobalBuffer((__gm__ uint64_t*)steps, wordCount);
    for (uint32_t first = 0; first < wordCount; first += fields) {
        Step step;
        for (uint32_t field = 0; field < fields; ++field) {
            reinterpret_cast<uint64_t*>(&step)[field] = words.GetValue(first + field);
        }
        run(step);
    }
}
