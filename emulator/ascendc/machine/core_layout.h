// Which cores the blocks of a launch run on: a vector core each, a cube core each, or a cube core with vector cores.
#pragma once

#include <cstdint>

#include "types.h"

namespace ascendc_host {

struct BlockShape {
    int cubes;  // 0 or 1
    int vectors;

    bool operator==(const BlockShape& other) const { return cubes == other.cubes && vectors == other.vectors; }
    int Cores() const { return cubes + vectors; }
};

constexpr int kMaxBlockCores = 3;

constexpr BlockShape ShapeOf(KernelType type)
{
    switch (type) {
        case KernelType::kAicOnly:
        case KernelType::kMixAic10:
            return {1, 0};
        case KernelType::kMixAic11:
            return {1, 1};
        case KernelType::kMixAic12:
            return {1, 2};
        default:
            return {0, 1};
    }
}

// Where a core sits. The cores of a block have consecutive indices, the cube core first.
struct CoreSeat {
    int64_t index;
    int64_t block;
    int inBlock;
    CoreKind kind;
    int subBlock;  // 0 or 1 for the vector cores of a block
};

class CoreLayout {
public:
    CoreLayout(BlockShape shape, int64_t blocks) : shape_(shape), blocks_(blocks) {}

    const BlockShape& Shape() const { return shape_; }
    bool Mixed() const { return shape_.cubes > 0 && shape_.vectors > 0; }
    int64_t Cores() const { return blocks_ * shape_.Cores(); }
    int64_t VectorCores() const { return blocks_ * shape_.vectors; }

    CoreSeat Seat(int64_t core) const
    {
        const int64_t block = core / shape_.Cores();
        const int inBlock = static_cast<int>(core % shape_.Cores());
        const bool cube = inBlock < shape_.cubes;
        return {core, block, inBlock, cube ? CoreKind::kCube : CoreKind::kVector, cube ? 0 : inBlock - shape_.cubes};
    }

private:
    BlockShape shape_;
    int64_t blocks_;
};

}  // namespace ascendc_host
