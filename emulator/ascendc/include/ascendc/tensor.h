// LocalTensor and GlobalTensor: checked views of the local memories and of global memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "constants.h"
#include "enums.h"
#include "machine/core.h"
#include "machine/local_memory.h"
#include "operand_checks.h"
#include "qualifiers.h"

namespace ascendc_host {

// An index that remembers the kernel's line: operator[] cannot have a default argument.
struct Index {
    template <typename T, std::enable_if_t<std::is_convertible_v<T, uint64_t>, bool> = true>
    Index(T index, Where at = Where::Here()) : value(static_cast<uint64_t>(index)), where(at)
    {}

    uint64_t value;
    Where where;
};

template <typename T>
T ScalarRead(const LocalView& view, uint64_t index, const char* call, Where where)
{
    if (!RequireMemory(CallSite{call, where}, view, "the tensor", {Memory::kUb})) return T{};
    Instruction instruction(Pipe::kS, call, where);
    T value;
    std::memcpy(&value, instruction.Read(view, index * sizeof(T), sizeof(T)), sizeof(T));
    instruction.ScalarCost(ScalarAccess::kUbRead);
    return value;
}

template <typename T>
void ScalarWrite(const LocalView& view, uint64_t index, const T& value, const char* call, Where where)
{
    if (!RequireMemory(CallSite{call, where}, view, "the tensor", {Memory::kUb})) return;
    Instruction instruction(Pipe::kS, call, where);
    std::memcpy(instruction.Write(view, index * sizeof(T), sizeof(T)), &value, sizeof(T));
    instruction.ScalarCost(ScalarAccess::kUbWrite);
}

template <typename T>
T ScalarRead(const GmView& view, uint64_t index, const char* call, Where where)
{
    Instruction instruction(Pipe::kS, call, where);
    T value;
    std::memcpy(&value, instruction.ReadGm(view, index * sizeof(T), sizeof(T)), sizeof(T));
    instruction.ScalarCost(ScalarAccess::kGmMiss);
    return value;
}

template <typename T>
void ScalarWrite(const GmView& view, uint64_t index, const T& value, const char* call, Where where)
{
    Instruction instruction(Pipe::kS, call, where);
    std::memcpy(instruction.WriteGm(view, index * sizeof(T), sizeof(T)), &value, sizeof(T));
    instruction.ScalarCost(ScalarAccess::kGmMiss);
}

}  // namespace ascendc_host

namespace AscendC {

using ascendc_host::Where;

template <typename T>
class LocalTensor {
public:
    using PrimType = T;

    LocalTensor() = default;
    explicit LocalTensor(const ascendc_host::LocalView& view) : view_(view) {}

    LocalTensor operator[](ascendc_host::Index offset) const
    {
        const uint64_t bytes = offset.value * sizeof(T);
        if (bytes > view_.size) FaultOutside(offset);
        ascendc_host::LocalView view = view_;
        view.offset += static_cast<uint32_t>(bytes);
        view.size -= static_cast<uint32_t>(bytes);
        return LocalTensor(view);
    }

    T GetValue(const uint32_t index, Where where = Where::Here()) const
    {
        return ascendc_host::ScalarRead<T>(view_, index, "GetValue", where);
    }

    template <typename U>
    void SetValue(const uint32_t index, const U value, Where where = Where::Here()) const
    {
        ascendc_host::ScalarWrite<T>(view_, index, static_cast<T>(value), "SetValue", where);
    }

    template <typename U>
    LocalTensor<U> ReinterpretCast() const
    {
        return LocalTensor<U>(view_);
    }

    // The byte address in its memory, as on the device; it is no host pointer.
    uint64_t GetPhyAddr() const
    {
        return view_.offset - ascendc_host::RegionOf(ascendc_host::Core::Current().MemoryOf(view_)).begin;
    }
    uint64_t GetPhyAddr(const uint32_t offset) const { return GetPhyAddr() + offset * sizeof(T); }

    uint32_t GetSize() const { return view_.size / sizeof(T); }
    const ascendc_host::LocalView& View() const { return view_; }

private:
    [[noreturn]] void FaultOutside(const ascendc_host::Index& offset) const
    {
        ascendc_host::Core::Current().Fault(ascendc_host::Check::kLocalBounds, offset.where, "LocalTensor::operator[]",
                                            "offset " + std::to_string(offset.value) + " lies behind the " +
                                                std::to_string(GetSize()) + " elements of the tensor",
                                            "index inside the tensor, or make its buffer larger");
    }

    ascendc_host::LocalView view_;
};

template <typename T>
class GlobalTensor {
public:
    using PrimType = T;

    void SetGlobalBuffer(__gm__ T* buffer, uint64_t bufferSize) { view_ = {buffer, bufferSize * sizeof(T)}; }
    void SetGlobalBuffer(__gm__ T* buffer) { view_ = {buffer, ascendc_host::GmView::kUnknownSize}; }

    GlobalTensor operator[](ascendc_host::Index offset) const
    {
        const uint64_t bytes = offset.value * sizeof(T);
        if (bytes > view_.bytes) FaultOutside(offset);
        GlobalTensor result = *this;
        result.view_.base = static_cast<const uint8_t*>(view_.base) + bytes;
        if (view_.bytes != ascendc_host::GmView::kUnknownSize) result.view_.bytes = view_.bytes - bytes;
        return result;
    }

    T GetValue(const uint64_t index, Where where = Where::Here()) const
    {
        return ascendc_host::ScalarRead<T>(view_, index, "GetValue", where);
    }
    void SetValue(const uint64_t index, T value, Where where = Where::Here())
    {
        ascendc_host::ScalarWrite<T>(view_, index, value, "SetValue", where);
    }
    const __gm__ T* GetPhyAddr() const { return static_cast<const T*>(view_.base); }
    __gm__ T* GetPhyAddr(const uint64_t offset) const
    {
        return const_cast<T*>(static_cast<const T*>(view_.base)) + offset;
    }

    // 0 when SetGlobalBuffer was given no size.
    uint64_t GetSize() const { return view_.bytes == ascendc_host::GmView::kUnknownSize ? 0 : view_.bytes / sizeof(T); }

    // The hint moves no data, and the modelled times do not know it; the traffic counts the commands that carry it.
    // SetGlobalBuffer forgets it.
    template <CacheRwMode rwMode = CacheRwMode::RW>
    void SetL2CacheHint(CacheMode mode)
    {
        view_.pastL2 = mode == CacheMode::CACHE_MODE_DISABLE;
    }

    const ascendc_host::GmView& View() const { return view_; }

private:
    [[noreturn]] void FaultOutside(const ascendc_host::Index& offset) const
    {
        ascendc_host::Core::Current().Fault(ascendc_host::Check::kGmBounds, offset.where, "GlobalTensor::operator[]",
                                            "offset " + std::to_string(offset.value) + " lies behind the " +
                                                std::to_string(GetSize()) + " elements given to SetGlobalBuffer",
                                            "index inside the tensor, or give SetGlobalBuffer the right size");
    }

    ascendc_host::GmView view_;
};

}  // namespace AscendC
