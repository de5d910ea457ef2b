// The local memories of a core, one behind the other in one space of offsets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "types.h"

namespace ascendc_host {

struct LocalRegion {
    Memory memory;
    CoreKind core;
    const char* name;
    uint32_t begin;  // offset
    uint32_t bytes;
    uint32_t usable;  // by a kernel
};

constexpr uint32_t kKiB = 1024;
constexpr uint32_t kUbBytes = 192 * kKiB;
// less the 8 KiB that the system reserves and the 256 B that a mixed kernel loses (asc-devkit, NPU 2201)
constexpr uint32_t kUbUserBytes = 184 * kKiB - 256;

// Sizes: asc-devkit, NPU 2201.
constexpr std::array<LocalRegion, 5> kLocalRegions = {{
    {Memory::kUb, CoreKind::kVector, "Unified Buffer", 0, kUbBytes, kUbUserBytes},
    {Memory::kL1, CoreKind::kCube, "L1", 0, 512 * kKiB, 512 * kKiB - 256},
    {Memory::kL0A, CoreKind::kCube, "L0A", 512 * kKiB, 64 * kKiB, 64 * kKiB},
    {Memory::kL0B, CoreKind::kCube, "L0B", 576 * kKiB, 64 * kKiB, 64 * kKiB},
    {Memory::kL0C, CoreKind::kCube, "L0C", 640 * kKiB, 128 * kKiB, 128 * kKiB},
}};

constexpr const LocalRegion& RegionOf(Memory memory) { return kLocalRegions[static_cast<size_t>(memory)]; }

constexpr const LocalRegion& RegionAt(CoreKind core, uint32_t offset)
{
    const LocalRegion* found = &kLocalRegions[0];
    for (const LocalRegion& region : kLocalRegions) {
        if (region.core == core && offset >= region.begin) found = &region;
    }
    return *found;
}

constexpr uint32_t LocalBytes(CoreKind core)
{
    uint32_t end = 0;
    for (const LocalRegion& region : kLocalRegions) {
        if (region.core == core) end = region.begin + region.bytes;
    }
    return end;
}

}  // namespace ascendc_host
