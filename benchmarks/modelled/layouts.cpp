// The sizes of the Unified Buffer's layout, as a C function for ctypes.
#include "cube_layout.h"

extern "C" void SizesOf(uint32_t headDim, uint32_t heads, uint32_t bfloat16, uint32_t postSoftmax, uint32_t cube,
                        uint32_t* sizes)
{
    using namespace toptheta;
    const UbLayout layout = MakeUbLayout({headDim, heads, bfloat16 != 0, postSoftmax != 0, cube != 0},
                                         cube != 0 ? kCubeChunkRows : kMostChunkRows);
    const uint32_t shown[] = {layout.slots, layout.tileRows, layout.chunkRows, layout.valueListRows, layout.total};
    for (uint32_t size : shown) *sizes++ = size;
}
