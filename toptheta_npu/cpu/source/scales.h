// The scales of int8 rows, one for each row of a KV head.
#pragma once

#include <cstdint>
#include <cstring>

#include "arguments.h"
#include "elements.h"
#include "rows.h"
#include "selection.h"

namespace toptheta {

inline Mask are_bad_scales(Floats scales)
{
    return either(greater(zero(), scales), either(is_nan(scales), equal(scales, broadcast(kInfinity))));
}

class RowScales {
public:
    RowScales(const Arguments& a, const Scales& scales, int64_t sequence, int64_t head)
        : type_(scales.type), rows_(a, in_bytes(scales), sequence, head)
    {}

    // Of keys first to first + count - 1, at most kLanes; the lanes past them hold 0.
    Floats of_neighbours(int64_t first, int count) const
    {
        if (!rows_.are_evenly_spaced(first, count)) {
            return gather(count, [&](int i) { return rows_[first + i]; });
        }
        const int8_t* from = rows_[first];
        const int64_t stride = rows_.row_stride();
        if (count == kLanes && stride == bytes(type_)) {
            return convert(from);
        }
        return gather(count, [&](int i) { return from + i * stride; });
    }

    // Of the first `count` keys, at most kLanes; the lanes past them hold 0.
    Floats of(const Keys& keys, int count) const
    {
        return keys.are_neighbours(count) ? of_neighbours(keys[0], count)
                                          : gather(count, [&](int i) { return rows_[keys[i]]; });
    }

    // Of keys first + keys[0] to first + keys[count - 1].
    Floats of_listed(int64_t first, const int32_t* keys, int count) const
    {
        return gather(count, [&](int i) { return rows_[first + keys[i]]; });
    }

private:
    static int64_t bytes(int64_t type) { return type == kFloat32Scales ? 4 : 2; }

    static TensorView in_bytes(const Scales& scales)
    {
        const int64_t size = bytes(scales.type);
        const TensorView& view = scales.view;
        return {view.data, view.sequence_stride * size, view.head_stride * size, view.row_stride * size, 0};
    }

    Floats convert(const void* from) const
    {
        const auto* halves = static_cast<const uint16_t*>(from);
        return type_ == kFloat32Scales   ? load(static_cast<const float*>(from))
               : type_ == kFloat16Scales ? load_float16(halves)
                                         : load_bfloat16(halves);
    }

    template <class Address>
    Floats gather(int count, const Address& address) const
    {
        alignas(float) char copied[kLanes * sizeof(float)] = {};
        if (type_ == kFloat32Scales) {
            for (int i = 0; i < count; ++i) {
                std::memcpy(copied + i * 4, address(i), 4);
            }
        } else {
            for (int i = 0; i < count; ++i) {
                std::memcpy(copied + i * 2, address(i), 2);
            }
        }
        return convert(copied);
    }

    int64_t type_;
    Rows<Int8> rows_;  // of bytes
};

}  // namespace toptheta
