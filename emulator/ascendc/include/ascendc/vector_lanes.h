// Element-wise vector instructions: checks, arithmetic lane by lane, cost.
//
// The arithmetic goes by groups of lanes that lie in one block of every operand, so that the inner loops have a
// constant length and the host compiler vectorises them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "machine/core.h"
#include "vector_banks.h"
#include "vector_operand.h"
#include "vector_overlap.h"
#include "vector_rates.h"
#include "vector_shape.h"

namespace ascendc_host {

// The lanes of a repeat when `Types` are the operands' types.
template <typename... Types>
constexpr uint32_t kLanesOf = std::min<uint32_t>(128, kRepeatBytes / std::max({sizeof(Types)...}));

// Finds the elements of an operand in host memory.
template <typename T>
struct LaneCursor {
    explicit LaneCursor(const Operand<T>& operand)
        : base(Core::Current().Local(operand.view.offset)),
          blockStride(operand.blockStride * kBlockBytes),
          repeatStride(operand.repeatStride * kBlockBytes)
    {}

    uint8_t* At(uint32_t repeat, uint32_t lane) const
    {
        constexpr uint32_t perBlock = kBlockBytes / sizeof(T);
        return base + static_cast<size_t>(repeat) * repeatStride + lane / perBlock * blockStride +
               lane % perBlock * sizeof(T);
    }

    uint8_t* base;
    uint32_t blockStride;
    uint32_t repeatStride;
};

template <typename T, uint32_t count>
std::array<T, count> LoadLanes(const uint8_t* from)
{
    std::array<T, count> lanes;
    std::memcpy(lanes.data(), from, sizeof(lanes));
    return lanes;
}

template <uint32_t count, typename D, typename F, typename... S>
void ComputeGroup(uint8_t* to, F f, const std::array<S, count>&... sources)
{
    std::array<D, count> result;
    for (uint32_t i = 0; i < count; ++i) result[i] = f(sources[i]...);
    std::memcpy(to, result.data(), sizeof(result));
}

template <typename D, typename F, typename... S>
void ComputeLane(uint8_t* to, F f, const std::array<S, 1>&... sources)
{
    const D result = f(sources[0]...);
    std::memcpy(to, &result, sizeof(result));
}

template <typename F, typename D, typename... S>
void ComputeLanes(const VectorShape& shape, F f, const LaneCursor<D>& to, const LaneCursor<S>&... from)
{
    constexpr uint32_t group = kLanesOf<D, S...> / kBlocksPerRepeat;
    constexpr uint32_t whole = (1u << group) - 1;
    for (uint32_t repeat = 0; repeat < shape.repeats; ++repeat) {
        const LaneBits& bits = shape.BitsOf(repeat);
        for (uint32_t lane = 0; lane < shape.lanes; lane += group) {
            uint32_t active = bits.Group(lane, group);
            if (active == whole) {
                ComputeGroup<group, D>(to.At(repeat, lane), f, LoadLanes<S, group>(from.At(repeat, lane))...);
                continue;
            }
            for (; active != 0; active &= active - 1) {
                const uint32_t at = lane + static_cast<uint32_t>(__builtin_ctz(active));
                ComputeLane<D>(to.At(repeat, at), f, LoadLanes<S, 1>(from.At(repeat, at))...);
            }
        }
    }
}

// In a build with refuse_infinities: an infinity among what an instruction compares, subtracts, reduces to
// a maximum or exponentiates is a finding. Maxs and Mins may read one, since they put finite numbers in its place.
template <typename T>
void RefuseInfinities(const CallSite& site, const Operand<T>& source, const VectorShape& shape)
{
    constexpr std::array calls = {"Sub", "Max", "Min", "Exp", "CompareScalar", "BlockReduceMax", "WholeReduceMax"};
    const auto isCalled = [&](const char* call) { return std::strcmp(call, site.call) == 0; };
    if (std::none_of(calls.begin(), calls.end(), isCalled)) return;
    const LaneCursor<T> cursor(source);
    for (uint32_t repeat = 0; repeat < shape.repeats; ++repeat) {
        for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
            if (shape.BitsOf(repeat).Group(lane, 1) == 0) continue;
            if (!std::isinf(LoadLanes<T, 1>(cursor.At(repeat, lane))[0])) continue;
            site.Report(Check::kParameter, std::string(source.name) + " holds an infinity",
                        "put the largest finite number in its place");
            return;
        }
    }
}

template <typename T>
void CheckFinite([[maybe_unused]] const CallSite& site, [[maybe_unused]] const Operand<T>& source,
                 [[maybe_unused]] const VectorShape& shape)
{
#ifdef ASCENDC_HOST_REFUSE_INFINITIES
    if constexpr (std::is_same_v<T, float>) RefuseInfinities(site, source, shape);
#endif
}

inline void CheckDestinationStride(const CallSite& site, const VectorOperand& destination)
{
    if (destination.blockStride != 0) return;
    site.Report(Check::kParameter, "dstBlkStride is 0, which is undefined",
                "give 1 for adjacent blocks; a stride of 0 is for sources only");
}

// destination[lane] = f(sources[lane]...) on the lanes of `shape`.
template <VectorOp op, typename F, typename D, typename... S>
void RunElementwise(const CallSite& site, const VectorShape& shape, F f, const Operand<D>& destination,
                    const Operand<S>&... sources)
{
    constexpr uint32_t sourceBytes = std::max({sizeof(D) * (sizeof...(S) == 0), sizeof(S)...});
    Instruction instruction(Pipe::kV, site.call, site.where);
    CheckDestinationStride(site, destination);
    (CheckOperand<Access::kRead>(instruction, sources, shape), ...);
    CheckOperand<Access::kWrite>(instruction, destination, shape);
    (OverlapCheck(site, destination, sources, shape).Run(), ...);
    (CheckFinite(site, sources, shape), ...);
    ComputeLanes(shape, f, LaneCursor<D>(destination), LaneCursor<S>(sources)...);
    instruction.ComputeCost(shape.repeats, shape.lanes / RateOf<op, sourceBytes, sizeof(D)>());
    instruction.VectorConflicts(BankConflictCycles(shape, destination, sources...));
}

// destination[lane] = f(destination[lane], sources[lane]...).
template <VectorOp op, typename F, typename D, typename... S>
void RunAccumulate(const CallSite& site, const VectorShape& shape, F f, const Operand<D>& destination,
                   const Operand<S>&... sources)
{
    constexpr uint32_t sourceBytes = std::max({sizeof(S)...});
    Instruction instruction(Pipe::kV, site.call, site.where);
    CheckDestinationStride(site, destination);
    CheckOperand<Access::kRead>(instruction, destination, shape);
    (CheckOperand<Access::kRead>(instruction, sources, shape), ...);
    CheckOperand<Access::kWrite>(instruction, destination, shape);
    OverlapCheck(site, destination, destination, shape).Run();
    (OverlapCheck(site, destination, sources, shape).Run(), ...);
    ComputeLanes(shape, f, LaneCursor<D>(destination), LaneCursor<D>(destination), LaneCursor<S>(sources)...);
    instruction.ComputeCost(shape.repeats, shape.lanes / RateOf<op, sourceBytes, sizeof(D)>());
    instruction.VectorConflicts(BankConflictCycles(shape, destination, sources...));
}

template <typename T, typename... Allowed>
constexpr bool kIsOneOf = (std::is_same_v<T, Allowed> || ...);

}  // namespace ascendc_host
