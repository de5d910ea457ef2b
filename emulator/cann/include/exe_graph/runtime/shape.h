// Shapes of the CANN runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace gert {

class Shape {
public:
    static constexpr size_t kMaxDimNum = 25;

    size_t GetDimNum() const { return count_; }
    void SetDimNum(size_t count)
    {
        if (count > kMaxDimNum) {
            throw std::out_of_range("a shape has at most 25 dimensions");
        }
        count_ = count;
    }

    // CANN gives INT64_MIN for a dimension that does not exist.
    int64_t GetDim(size_t index) const { return index < count_ ? dims_[index] : INT64_MIN; }
    void SetDim(size_t index, int64_t value)
    {
        if (index >= kMaxDimNum) {
            throw std::out_of_range("a shape has at most 25 dimensions");
        }
        dims_[index] = value;
    }

private:
    size_t count_ = 0;
    int64_t dims_[kMaxDimNum] = {};
};

// The shape of the view (origin) and of the storage behind it.
class StorageShape {
public:
    const Shape& GetOriginShape() const { return origin_; }
    const Shape& GetStorageShape() const { return storage_; }
    Shape& MutableOriginShape() { return origin_; }
    Shape& MutableStorageShape() { return storage_; }

private:
    Shape origin_;
    Shape storage_;
};

}  // namespace gert
