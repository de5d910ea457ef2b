// Which lanes of which repeats a vector instruction works on.
//
// A repeat is 256 bytes of the widest operand: 128 lanes of 16 bits, 64 of 32 bits. Norm mode applies one mask to every
// repeat; counter mode works on the first `count` elements, however many repeats that takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "constants.h"
#include "machine/core.h"
#include "registers.h"

namespace ascendc_host {

constexpr uint32_t kBlockBytes = 32;
constexpr uint32_t kRepeatBytes = 256;
constexpr uint32_t kBlocksPerRepeat = 8;

struct CallSite {
    const char* call;
    Where where;

    void Report(Check check, const std::string& what, const std::string& remedy) const
    {
        Core::Current().Report(check, where, call, what, remedy);
    }
};

struct LaneBits {
    uint64_t low = 0;
    uint64_t high = 0;

    bool operator==(const LaneBits& other) const { return low == other.low && high == other.high; }
    bool None() const { return (low | high) == 0; }

    // The bits of `count` lanes from `first`; a group of lanes never crosses bit 64.
    uint32_t Group(uint32_t first, uint32_t count) const
    {
        const uint64_t word = first < 64 ? low >> first : high >> (first - 64);
        return static_cast<uint32_t>(word & ((1ull << count) - 1));
    }
};

inline LaneBits FirstLanes(uint64_t lanes)
{
    const MaskRegister mask = PrefixMask(lanes);
    return {mask.low, mask.high};
}

struct VectorShape {
    uint32_t lanes = 0;  // of a repeat
    uint32_t repeats = 0;
    LaneBits bits;  // of every repeat but the last
    LaneBits lastBits;
    uint64_t elements = 0;  // how many, if all lanes up to the last one take part; else 0

    const LaneBits& BitsOf(uint32_t repeat) const { return repeat + 1 == repeats ? lastBits : bits; }
};

inline VectorShape CountShape(uint32_t lanes, uint64_t count)
{
    VectorShape shape;
    shape.lanes = lanes;
    shape.repeats = static_cast<uint32_t>((count + lanes - 1) / lanes);
    shape.bits = FirstLanes(lanes);
    shape.lastBits = FirstLanes(count - static_cast<uint64_t>(shape.repeats - 1) * lanes);
    shape.elements = count;
    return shape;
}

// The shape of a call with a count. A count of 0 does nothing, as on the device. Leaves the mask register as the device
// does: norm mode, all lanes.
inline std::optional<VectorShape> LevelTwoShape(const CallSite& site, uint32_t lanes, int64_t count)
{
    CurrentMask() = MaskRegister{};
    if (count > 0) return CountShape(lanes, static_cast<uint64_t>(count));
    if (count < 0) {
        site.Report(Check::kParameter, "count is " + std::to_string(count), "give the number of elements, 0 or more");
    }
    return std::nullopt;
}

// The mask of a call as kernels write it: a number of leading lanes, or an array of two words with a bit for each lane.
struct MaskArgument {
    template <typename T, std::enable_if_t<std::is_integral_v<T>, bool> = true>
    MaskArgument(T lanesIn) : lanes(static_cast<uint64_t>(lanesIn))
    {}
    MaskArgument(const uint64_t* wordsIn) : words(wordsIn) {}

    uint64_t lanes = 0;
    const uint64_t* words = nullptr;
};

inline MaskRegister RequestedLanes(const CallSite& site, uint32_t lanes, uint64_t mask)
{
    if (mask == 0 || mask > lanes) {
        site.Report(Check::kParameter,
                    "mask is " + std::to_string(mask) + "; a repeat has " + std::to_string(lanes) + " lanes",
                    "give a mask from 1 to " + std::to_string(lanes) + " (256 bytes of the wider type)");
    }
    return PrefixMask(std::min<uint64_t>(mask, lanes));
}

// A mask argument as the register's bits.
inline MaskRegister RequestedMask(const CallSite& site, uint32_t lanes, const MaskArgument& mask)
{
    if (mask.words == nullptr) return RequestedLanes(site, lanes, mask.lanes);
    MaskRegister requested;
    requested.low = mask.words[0];
    requested.high = lanes > 64 ? mask.words[1] : 0;
    if (lanes <= 64 && mask.words[1] != 0) {
        site.Report(Check::kParameter, "mask[1] is not 0 for a type with 64 lanes in a repeat", "set mask[1] to 0");
    }
    if (requested.low == 0 && requested.high == 0) {
        site.Report(Check::kParameter, "the mask has no lane: the call does nothing",
                    "set at least one bit of the mask");
    }
    return requested;
}

// The shape of a call with mask and repeats once the register holds the mask that is in force.
inline std::optional<VectorShape> RegisterShape(const CallSite& site, uint32_t lanes, int64_t repeats)
{
    const MaskRegister& mask = CurrentMask();
    if (mask.counter) {
        if (mask.low == 0) return std::nullopt;
        return CountShape(lanes, mask.low);
    }
    if (repeats <= 0 || repeats > AscendC::MAX_REPEAT_TIMES) {
        site.Report(Check::kParameter,
                    "the number of repeats is " + std::to_string(repeats) + " (a uint8_t wraps at 256)",
                    "give 1 to 255 repeats, and split longer work into several calls");
        return std::nullopt;
    }
    VectorShape shape;
    shape.lanes = lanes;
    shape.repeats = static_cast<uint32_t>(repeats);
    const LaneBits all = FirstLanes(lanes);
    shape.bits = {mask.low & all.low, mask.high & all.high};
    shape.lastBits = shape.bits;
    if (shape.bits.None()) return std::nullopt;
    if (shape.bits == all) shape.elements = static_cast<uint64_t>(lanes) * shape.repeats;
    return shape;
}

// Without isSetMask the register counts and `mask` does not.
template <bool isSetMask>
std::optional<VectorShape> LevelZeroShape(const CallSite& site, uint32_t lanes, const MaskArgument& mask,
                                          int64_t repeats)
{
    if constexpr (isSetMask) {
        const MaskRegister requested = RequestedMask(site, lanes, mask);
        if (CurrentMask().counter) {
            site.Report(Check::kParameter, "the mask register is in counter mode, but the call sets a mask of lanes",
                        "call SetMaskNorm first, or use isSetMask = false and SetVectorMask");
        }
        CurrentMask() = requested;
    }
    return RegisterShape(site, lanes, repeats);
}

}  // namespace ascendc_host
