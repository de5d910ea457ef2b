// Operands of vector instructions: where their blocks lie, and the checks of every access before memory is touched.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "machine/core.h"
#include "tensor.h"
#include "vector_shape.h"

namespace ascendc_host {

// Strides are in blocks of 32 bytes, from start to start.
struct VectorOperand {
    const char* name = "";
    LocalView view;
    uint32_t elementBytes = 0;
    uint32_t blockStride = 1;
    uint32_t repeatStride = kBlocksPerRepeat;
    bool mayCarry = false;    // a repeat may read what an earlier repeat of the same instruction wrote
    bool mayNarrow = false;   // may overlap the narrower destination inside a repeat

    uint32_t LanesPerBlock() const { return kBlockBytes / elementBytes; }
};

template <typename T>
struct Operand : VectorOperand {
    Operand(const char* operandName, const AscendC::LocalTensor<T>& tensor, uint32_t blocks, uint32_t repeats)
    {
        name = operandName;
        view = tensor.View();
        elementBytes = sizeof(T);
        blockStride = blocks;
        repeatStride = repeats;
    }
};

// A run of active bytes inside one block of a repeat.
struct BlockRun {
    uint16_t block = 0;
    uint16_t byte = 0;
    uint16_t bytes = 0;

    uint32_t Offset(const VectorOperand& operand) const { return block * operand.blockStride * kBlockBytes + byte; }
};

// The active bytes of one repeat of an operand, in ascending lanes.
class RepeatRuns {
public:
    RepeatRuns(const LaneBits& bits, uint32_t lanes, uint32_t elementBytes)
    {
        const uint32_t perBlock = kBlockBytes / elementBytes;
        const uint32_t whole = perBlock == 32 ? ~0u : (1u << perBlock) - 1;
        for (uint32_t first = 0, block = 0; first < lanes; first += perBlock, ++block) {
            uint32_t active = bits.Group(first, perBlock);
            if (active == whole) {
                runs_[count_++] = {static_cast<uint16_t>(block), 0, kBlockBytes};
                continue;
            }
            AddPieces(active, static_cast<uint16_t>(block), elementBytes);
        }
    }

    const BlockRun* begin() const { return runs_.data(); }
    const BlockRun* end() const { return runs_.data() + count_; }
    uint32_t size() const { return count_; }
    const BlockRun& operator[](uint32_t index) const { return runs_[index]; }

    // The first and the last byte of the repeat, from its start.
    uint32_t First(const VectorOperand& operand) const
    {
        uint32_t first = ~0u;
        for (const BlockRun& run : *this) first = std::min(first, run.Offset(operand));
        return first;
    }
    uint32_t End(const VectorOperand& operand) const
    {
        uint32_t last = 0;
        for (const BlockRun& run : *this) last = std::max(last, run.Offset(operand) + run.bytes);
        return last;
    }

private:
    void AddPieces(uint32_t active, uint16_t block, uint32_t elementBytes)
    {
        while (active != 0) {
            const uint32_t first = static_cast<uint32_t>(__builtin_ctz(active));
            const uint32_t length = static_cast<uint32_t>(__builtin_ctzll(~(static_cast<uint64_t>(active) >> first)));
            runs_[count_++] = {block, static_cast<uint16_t>(first * elementBytes),
                               static_cast<uint16_t>(length * elementBytes)};
            active &= ~(((1u << length) - 1) << first);
        }
    }

    uint32_t count_ = 0;
    std::array<BlockRun, 64> runs_;
};

enum class Access : uint8_t { kRead, kWrite };

struct Span {
    uint64_t first = 0;
    uint64_t end = 0;  // behind the last byte, from the start of the view
};

// All bytes from the first to the last that the operand touches.
inline Span SpanOf(const VectorOperand& operand, const VectorShape& shape)
{
    const uint64_t repeatBytes = static_cast<uint64_t>(operand.repeatStride) * kBlockBytes;
    const RepeatRuns last(shape.lastBits, shape.lanes, operand.elementBytes);
    Span span{last.First(operand), (shape.repeats - 1) * repeatBytes + last.End(operand)};
    if (shape.repeats == 1) return span;
    if (shape.bits == shape.lastBits) return span;
    const RepeatRuns others(shape.bits, shape.lanes, operand.elementBytes);
    span.first = others.First(operand);
    span.end = std::max(span.end, (shape.repeats - 2) * repeatBytes + others.End(operand));
    return span;
}

// The length of the active bytes if they are one piece from the start of the view, else 0.
inline uint64_t ContiguousBytes(const VectorOperand& operand, const VectorShape& shape)
{
    const bool blocksTouch = operand.blockStride == 1;
    const bool repeatsTouch = shape.repeats == 1 || operand.repeatStride * operand.LanesPerBlock() == shape.lanes;
    return blocksTouch && repeatsTouch ? shape.elements * operand.elementBytes : 0;
}

template <Access access>
void TouchBlocks(Instruction& instruction, const VectorOperand& operand, const VectorShape& shape)
{
    const Span span = SpanOf(operand, shape);
    const uint32_t base = instruction.CheckSpan(operand.view, span.first, span.end, operand.name);
    const RepeatRuns runs(shape.bits, shape.lanes, operand.elementBytes);
    const RepeatRuns lastRuns(shape.lastBits, shape.lanes, operand.elementBytes);
    for (uint32_t repeat = 0; repeat < shape.repeats; ++repeat) {
        const uint32_t start = base + repeat * operand.repeatStride * kBlockBytes;
        for (const BlockRun& run : repeat + 1 == shape.repeats ? lastRuns : runs) {
            if constexpr (access == Access::kRead) {
                instruction.ReadBlock(start + run.Offset(operand), run.bytes);
            } else {
                instruction.WriteBlock(start + run.Offset(operand), run.bytes);
            }
        }
    }
}

// Alignment, bounds, contents and order of everything the operand touches.
template <Access access>
void CheckOperand(Instruction& instruction, const VectorOperand& operand, const VectorShape& shape)
{
    instruction.CheckAligned(operand.view, kBlockBytes, operand.name);
    const uint64_t bytes = ContiguousBytes(operand, shape);
    if (bytes == 0) {
        TouchBlocks<access>(instruction, operand, shape);
    } else if constexpr (access == Access::kRead) {
        instruction.Read(operand.view, 0, bytes);
    } else {
        instruction.Write(operand.view, 0, bytes);
    }
}

}  // namespace ascendc_host
