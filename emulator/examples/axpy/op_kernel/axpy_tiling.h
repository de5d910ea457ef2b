#pragma once

#include <cstdint>

struct AxpyTiling {
    uint32_t tiles;  // of each block
    float alpha;
};

constexpr uint32_t kTile = 1024;  // elements
