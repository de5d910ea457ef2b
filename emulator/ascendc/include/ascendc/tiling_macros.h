// The macros by which a kernel declares its type and reads its tiling data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "machine/core.h"
#include "qualifiers.h"

enum KernelMetaType : uint8_t {
    KERNEL_TYPE_AIV_ONLY,
    KERNEL_TYPE_AIC_ONLY,
    KERNEL_TYPE_MIX_AIV_1_0,
    KERNEL_TYPE_MIX_AIC_1_0,
    KERNEL_TYPE_MIX_AIC_1_1,
    KERNEL_TYPE_MIX_AIC_1_2,
    KERNEL_TYPE_AICORE,
    KERNEL_TYPE_VECTORCORE,
    KERNEL_TYPE_MIX_AICORE,
    KERNEL_TYPE_MIX_VECTOR_CORE,
    KERNEL_TYPE_MAX,
};

namespace ascendc_host {

template <KernelMetaType type>
constexpr KernelType KernelTypeOf()
{
    static_assert(type <= KERNEL_TYPE_MIX_AIC_1_2, "this kernel type does not exist on the 910B");
    switch (type) {
        case KERNEL_TYPE_AIV_ONLY:
            return KernelType::kAivOnly;
        case KERNEL_TYPE_AIC_ONLY:
            return KernelType::kAicOnly;
        case KERNEL_TYPE_MIX_AIV_1_0:
            return KernelType::kMixAiv10;
        case KERNEL_TYPE_MIX_AIC_1_0:
            return KernelType::kMixAic10;
        case KERNEL_TYPE_MIX_AIC_1_1:
            return KernelType::kMixAic11;
        default:
            return KernelType::kMixAic12;
    }
}

constexpr uint64_t kScalarBytes = 8;  // of one access of the scalar unit

// The scalar unit copies the bytes through its data cache.
inline void CopyTilingBytes(const uint8_t* tiling, void* to, uint64_t bytes, Where where)
{
    for (uint64_t at = 0; at < bytes; at += kScalarBytes) {
        const uint64_t piece = std::min(kScalarBytes, bytes - at);
        Instruction instruction(Pipe::kS, "COPY_TILING", where);
        std::memcpy(static_cast<uint8_t*>(to) + at, instruction.ReadGm(tiling + at, piece), piece);
        instruction.ScalarCost(ScalarAccess::kGmMiss);
    }
}

// What the toolkit generates for GET_TILING_DATA: a vector core waits for a DMA into the UB and copies the bytes from
// there, a cube core copies them through its data cache (get_op_tiling.py of CANN 8.1 and of asc-devkit).
inline void ReadTilingBytes(const uint8_t* tiling, void* to, uint64_t bytes, Where where)
{
    if (Core::Current().Kind() == CoreKind::kCube) {
        CopyTilingBytes(tiling, to, bytes, where);
        return;
    }
    {
        Instruction copy(Pipe::kS, "GET_TILING_DATA", where);
        std::memcpy(to, copy.CopyGm(tiling, bytes), bytes);
    }
    for (uint64_t at = 0; at < bytes; at += kScalarBytes) {
        Instruction read(Pipe::kS, "GET_TILING_DATA", where);
        read.ScalarCost(ScalarAccess::kUbRead);
    }
}

template <typename T>
void ReadTiling(const uint8_t* tiling, T& data, Where where = Where::Here())
{
    static_assert(std::is_trivially_copyable_v<T>, "tiling data is a plain structure without pointers");
    ReadTilingBytes(tiling, &data, sizeof(T), where);
}

// Tiling data in global memory. A kernel of this model reads it with COPY_TILING_WITH_STRUCT alone, which is charged.
template <typename T>
struct TilingPointer {
    const uint8_t* tiling;
};

// The structure there, or one that it begins with.
template <typename T, typename Whole>
T CopyTiling(TilingPointer<Whole> from, Where where = Where::Here())
{
    static_assert(std::is_trivially_copyable_v<T>, "tiling data is a plain structure without pointers");
    static_assert(sizeof(T) <= sizeof(Whole), "the copy goes past the end of the tiling data");
    T data;
    CopyTilingBytes(from.tiling, &data, sizeof(T), where);
    return data;
}

}  // namespace ascendc_host

#define KERNEL_TASK_TYPE_DEFAULT(value) \
    ascendc_host::Core::Current().DeclareKernelType(ascendc_host::KernelTypeOf<value>(), ascendc_host::Where::Here())
#define KERNEL_TASK_TYPE(key, value)                                                          \
    ascendc_host::Core::Current().DeclareKernelType(key, ascendc_host::KernelTypeOf<value>(), \
                                                    ascendc_host::Where::Here())

#define TILING_KEY_VAR (ascendc_host::Core::Current().TilingKey())
#define TILING_KEY_IS(k) (TILING_KEY_VAR == (k))

// Names the structure that GET_TILING_DATA reads in this scope.
#define REGISTER_TILING_DEFAULT(tiling_struct) [[maybe_unused]] typedef tiling_struct AscendcHostTilingStruct

#define GET_TILING_DATA(tiling_data, tiling_arg) \
    AscendcHostTilingStruct tiling_data;         \
    ascendc_host::ReadTiling(tiling_arg, tiling_data)
#define GET_TILING_DATA_WITH_STRUCT(tiling_struct, tiling_data, tiling_arg) \
    tiling_struct tiling_data;                                              \
    ascendc_host::ReadTiling(tiling_arg, tiling_data)
#define GET_TILING_DATA_MEMBER(tiling_struct, member, var, tiling_arg) \
    decltype(tiling_struct::member) var;                               \
    ascendc_host::ReadTiling((tiling_arg) + offsetof(tiling_struct, member), var)
// Toolkits after CANN 8.1. The pointer may not be dereferenced here: what COPY_TILING_WITH_STRUCT reads is in the
// timeline, other reads are not. A build with ASCENDC_HOST_NO_TILING_POINTERS is like one of 8.1.
#ifndef ASCENDC_HOST_NO_TILING_POINTERS
#define GET_TILING_DATA_PTR_WITH_STRUCT(tiling_struct, dst_ptr, tiling_ptr) \
    const ascendc_host::TilingPointer<tiling_struct> dst_ptr = {tiling_ptr}
#define COPY_TILING_WITH_STRUCT(tiling_struct, src_ptr, dst_ptr)                                        \
    const tiling_struct ascendcHostCopyOf_##dst_ptr = ascendc_host::CopyTiling<tiling_struct>(src_ptr); \
    const tiling_struct* dst_ptr = &ascendcHostCopyOf_##dst_ptr
#endif

// The system's own part of the workspace, which nothing in this model uses.
inline GM_ADDR GetSysWorkSpacePtr() { return nullptr; }
