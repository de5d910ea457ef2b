// The element types of a cache: how a step of neighbouring elements becomes vectors of floats.
//
// A step of bfloat16 comes as two vectors, the elements at even places and those at odd ones, since that takes one
// instruction each. Sums do not care for the order, so the query and the accumulators are held in the same order.
// `load_in_order` gives kLanes neighbouring elements as they lie. int8 is the type of a cache alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vector.h"

namespace toptheta {

struct Float32 {
    using Stored = float;
    static constexpr int kVectors = 1;  // per step
    static constexpr int kTurns = 1;    // vectors that neighbouring elements take turns in
    static constexpr int kStep = kLanes;
    static void load(const Stored* from, Floats* to) { to[0] = toptheta::load(from); }
    static Floats load_in_order(const Stored* from) { return toptheta::load(from); }
    static void write(Stored* to, const float* from, int count) { std::memcpy(to, from, sizeof(float) * count); }
};

struct Float16 {
    using Stored = uint16_t;
    static constexpr int kVectors = 1;
    static constexpr int kTurns = 1;
    static constexpr int kStep = kLanes;
    static void load(const Stored* from, Floats* to) { to[0] = load_float16(from); }
    static Floats load_in_order(const Stored* from) { return load_float16(from); }
    static void write(Stored* to, const float* from, int count)
    {
        for (int done = 0; done < count; done += kLanes) {
            const int some = std::min(kLanes, count - done);
            float values[kLanes] = {};
            Stored halves[kLanes];
            std::memcpy(values, from + done, sizeof(float) * some);
            store_float16(halves, toptheta::load(values));
            std::memcpy(to + done, halves, sizeof(Stored) * some);
        }
    }
};

struct BFloat16 {
    using Stored = uint16_t;
    static constexpr int kVectors = 2;
    static constexpr int kTurns = 2;
    static constexpr int kStep = 2 * kLanes;
    static void load(const Stored* from, Floats* to) { load_bfloat16(from, to[0], to[1]); }
    static Floats load_in_order(const Stored* from) { return load_bfloat16(from); }
    static void write(Stored* to, const float* from, int count) { std::transform(from, from + count, to, to_nearest); }

private:
    // ties to even; a NaN stays one, though its low bits go
    static Stored to_nearest(float value)
    {
        uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        const uint32_t up = value != value ? 0x400000 : 0x7FFF + ((word >> 16) & 1);
        return static_cast<Stored>((value != value ? word | up : word + up) >> 16);
    }
};

struct Int8 {
    using Stored = int8_t;
    static constexpr int kVectors = 2;
    static constexpr int kTurns = 1;
    static constexpr int kStep = 2 * kLanes;
    static void load(const Stored* from, Floats* to)
    {
        to[0] = load_int8(from);
        to[1] = load_int8(from + kLanes);
    }
    static Floats load_in_order(const Stored* from) { return load_int8(from); }
};

// Numbers in the order of `load` as they follow each other in memory.
template <class Element>
inline void in_memory_order(const float* loaded, int count, float* to)
{
    for (int i = 0; i < count; ++i) {
        const int step = i / Element::kStep, place = i % Element::kStep;
        const int turn = Element::kTurns == 1 ? place : place % Element::kTurns * kLanes + place / Element::kTurns;
        to[i] = loaded[step * Element::kStep + turn];
    }
}

}  // namespace toptheta
