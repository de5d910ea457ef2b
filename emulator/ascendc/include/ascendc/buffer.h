// TBuf: a piece of local memory without a queue.
#pragma once

#include <cstdint>
#include <string>

#include "machine/core.h"
#include "positions.h"
#include "tensor.h"

namespace AscendC {

class TPipe;

template <TPosition pos = TPosition::LCM>
class TBuf {
    static_assert(ascendc_host::IsLocalPosition(pos),
                  "a TBuf lies in VECIN, VECOUT or VECCALC on a vector core, in A1, B1, A2, B2 or CO1 on a cube core");

public:
    template <typename T>
    LocalTensor<T> Get(Where where = Where::Here())
    {
        return Part<T>(0, Whole().size / sizeof(T), "TBuf::Get", where);
    }

    template <typename T>
    LocalTensor<T> Get(uint32_t len, Where where = Where::Here())
    {
        return Part<T>(0, len, "TBuf::Get", where);
    }

    // `size` in elements, `bufOffset` in bytes.
    template <typename T>
    LocalTensor<T> GetWithOffset(uint32_t size, uint32_t bufOffset, Where where = Where::Here())
    {
        return Part<T>(bufOffset, size, "TBuf::GetWithOffset", where);
    }

private:
    friend class TPipe;

    ascendc_host::LocalView Whole() const
    {
        return initialised_ ? ascendc_host::Core::Current().WholeBuffer(buffer_) : ascendc_host::LocalView{};
    }

    template <typename T>
    LocalTensor<T> Part(uint32_t offset, uint32_t count, const char* call, Where where)
    {
        ascendc_host::LocalView view = Whole();
        const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
        if (bytes == 0 || offset + bytes > view.size) {
            ascendc_host::Core::Current().Fault(
                ascendc_host::Check::kLocalBounds, where, call,
                "bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) + " of a buffer of " +
                    std::to_string(view.size) + " bytes",
                "ask for at least one element inside the buffer, and call TPipe::InitBuffer first");
        }
        if (offset % ONE_BLK_SIZE != 0) {
            ascendc_host::Core::Current().Report(ascendc_host::Check::kAlignment, where, call,
                                                 "the offset is " + std::to_string(offset) + " bytes",
                                                 "give an offset that is a multiple of 32 bytes");
        }
        view.offset += offset;
        view.size = static_cast<uint32_t>(bytes);
        return LocalTensor<T>(view);
    }

    uint32_t buffer_ = 0;
    bool initialised_ = false;
};

}  // namespace AscendC
