// Where the parts of the queries lie in the workspace, by which int8 K rows are multiplied (query_parts.h): a slot for
// each unit, and two for each core, which takes them for the units that it shares with others. So nobody but the
// cores of one block touches a slot.
#pragma once

#include "cube_layout.h"
#include "top_theta_incremental_attention_tiling_data.h"

namespace toptheta {

// A query as two int8 numbers: query = scale * (kPartBase * high + low).
constexpr uint32_t kQueryParts = 2;
constexpr float kPartBase = 256.0f;

// int8 parts [part][head][column], then a block of the scale of each head
TOPTHETA_DEVICE constexpr uint64_t QuerySlotBytes(uint32_t headDim, uint32_t headBlock)
{
    return static_cast<uint64_t>(headBlock) * (kQueryParts * headDim + kBlockBytes);
}

TOPTHETA_DEVICE constexpr uint64_t QuerySlots(uint32_t units, uint32_t cores) { return units + 2ULL * cores; }

// In bytes behind the first slot. Of two units that a core shares, the second one begins with its first row.
TOPTHETA_DEVICE inline uint64_t QuerySlotOf(const TilingData& tiling, const Segment& segment, uint32_t core)
{
    const uint32_t units = tiling.batch * tiling.numKeyValueHeads * tiling.headBlocks;
    const uint32_t unit =
        (segment.batch * tiling.numKeyValueHeads + segment.kvHead) * tiling.headBlocks + segment.headBlock;
    const uint32_t slot = IsWhole(segment) ? unit : units + 2 * core + (segment.rowBegin > 0 ? 0 : 1);
    return slot * QuerySlotBytes(tiling.headDim, tiling.headBlock);
}

// The slots lie behind the rings of scores.
TOPTHETA_DEVICE inline uint64_t QuerySlotsOffset(const TilingData& tiling)
{
    return tiling.ringOffset + tiling.cores * RingBytes(tiling.headDim, tiling.headBlock, sizeof(int8_t));
}

// Flags between the cores of a block, behind those of the rings: the parts for the first segment of a vector core, and
// for all of them.
constexpr uint32_t kQueryFlags = 2;
TOPTHETA_DEVICE inline uint16_t PartsReady(uint32_t segments)
{
    return static_cast<uint16_t>(1 + kRingRounds + segments);
}

}  // namespace toptheta
