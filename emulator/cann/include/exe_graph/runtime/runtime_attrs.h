// Attribute values of one call, in the order of the operator definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace gert {

template <typename T>
class TypedContinuousVector {
public:
    TypedContinuousVector() = default;
    explicit TypedContinuousVector(std::vector<T> values) : values_(std::move(values)) {}

    size_t GetSize() const { return values_.size(); }
    const T* GetData() const { return values_.data(); }

private:
    std::vector<T> values_;
};

using AttributeValue = std::variant<std::monostate, int64_t, float, bool, std::string, TypedContinuousVector<int64_t>>;

class RuntimeAttrs {
public:
    explicit RuntimeAttrs(std::vector<AttributeValue> values) : values_(std::move(values)) {}

    // Null where there is no attribute of that index and type.
    const int64_t* GetInt(size_t index) const { return Get<int64_t>(index); }
    const float* GetFloat(size_t index) const { return Get<float>(index); }
    const bool* GetBool(size_t index) const { return Get<bool>(index); }
    const TypedContinuousVector<int64_t>* GetListInt(size_t index) const
    {
        return Get<TypedContinuousVector<int64_t>>(index);
    }
    const char* GetStr(size_t index) const
    {
        const std::string* text = Get<std::string>(index);
        return text == nullptr ? nullptr : text->c_str();
    }
    size_t GetAttrNum() const { return values_.size(); }

private:
    template <typename T>
    const T* Get(size_t index) const
    {
        return index < values_.size() ? std::get_if<T>(&values_[index]) : nullptr;
    }

    std::vector<AttributeValue> values_;
};

}  // namespace gert
