// The few steps of which the machine's test kernels are made, written directly on the machine core.
#pragma once

#include <cstring>

#include "machine/core.h"

using namespace ascendc_host;

constexpr uint32_t kTile = 256;  // bytes

inline Core& TheCore() { return Core::Current(); }

inline LocalView Buffer(uint32_t bytes = kTile, const char* name = "tile", Where where = Where::Here())
{
    return TheCore().WholeBuffer(TheCore().AllocateLocal(Memory::kUb, bytes, name, where));
}

inline LocalView BufferIn(Memory memory, uint32_t bytes = kTile, Where where = Where::Here())
{
    return TheCore().WholeBuffer(TheCore().AllocateLocal(memory, bytes, "tile", where));
}

inline void CopyIn(const LocalView& to, const uint8_t* from, uint32_t bytes = kTile, Where where = Where::Here())
{
    Instruction copy(Pipe::kMte2, "CopyIn", where);
    const uint8_t* source = copy.ReadGm(from, bytes);
    std::memcpy(copy.Write(to, 0, bytes), source, bytes);
    copy.DmaCost(bytes);
}

inline void CopyOut(uint8_t* to, const LocalView& from, uint32_t bytes = kTile, Where where = Where::Here())
{
    Instruction copy(Pipe::kMte3, "CopyOut", where);
    const uint8_t* source = copy.Read(from, 0, bytes);
    std::memcpy(copy.WriteGm(to, bytes), source, bytes);
    copy.DmaCost(bytes);
}

// to[i] = from[i] + 1 on the vector pipe
inline void Increment(const LocalView& to, const LocalView& from, uint32_t bytes = kTile, Where where = Where::Here())
{
    Instruction add(Pipe::kV, "Increment", where);
    const uint8_t* source = add.Read(from, 0, bytes);
    uint8_t* target = add.Write(to, 0, bytes);
    for (uint32_t i = 0; i < bytes; ++i) target[i] = static_cast<uint8_t>(source[i] + 1);
    add.ComputeCost(bytes / 256.0, 1);
}

inline void Fill(const LocalView& to, uint32_t offset = 0, uint32_t bytes = kTile, Where where = Where::Here())
{
    Instruction fill(Pipe::kV, "Fill", where);
    std::memset(fill.Write(to, offset, bytes), 1, bytes);
    fill.ComputeCost(bytes / 256.0, 1);
}

// The cube's pipes: M writes an L0C buffer, FIX copies it out.
inline void Multiply(const LocalView& to, uint32_t bytes = kTile, Where where = Where::Here())
{
    Instruction multiply(Pipe::kM, "Multiply", where);
    std::memset(multiply.Write(to, 0, bytes), 1, bytes);
    multiply.ComputeCost(bytes / 256.0, 1);
}

inline void FixOut(uint8_t* to, const LocalView& from, uint32_t bytes = kTile, Where where = Where::Here())
{
    Instruction copy(Pipe::kFix, "FixOut", where);
    const uint8_t* source = copy.Read(from, 0, bytes);
    std::memcpy(copy.WriteGm(to, bytes), source, bytes);
    copy.DmaCost(bytes);
}

inline uint32_t GetValue(const LocalView& from, uint32_t offset = 0, Where where = Where::Here())
{
    Instruction read(Pipe::kS, "GetValue", where);
    uint32_t value;
    std::memcpy(&value, read.Read(from, offset, sizeof value), sizeof value);
    read.ScalarCost(ScalarAccess::kUbRead);
    return value;
}

inline void SetValue(const LocalView& to, uint32_t offset, uint32_t value, Where where = Where::Here())
{
    Instruction write(Pipe::kS, "SetValue", where);
    std::memcpy(write.Write(to, offset, sizeof value), &value, sizeof value);
    write.ScalarCost(ScalarAccess::kUbWrite);
}

inline uint32_t GetGm(const uint8_t* from, Where where = Where::Here())
{
    Instruction read(Pipe::kS, "GetValue", where);
    uint32_t value;
    std::memcpy(&value, read.ReadGm(from, sizeof value), sizeof value);
    return value;
}

inline void SetGm(uint8_t* to, uint32_t value, Where where = Where::Here())
{
    Instruction write(Pipe::kS, "SetValue", where);
    std::memcpy(write.WriteGm(to, sizeof value), &value, sizeof value);
}

inline void Set(Pipe from, Pipe to, int id = 0, Where where = Where::Here()) { TheCore().SetFlag(from, to, id, where); }
inline void Wait(Pipe from, Pipe to, int id = 0, Where where = Where::Here())
{
    TheCore().WaitFlag(from, to, id, where);
}
inline void Order(Pipe from, Pipe to, int id = 0, Where where = Where::Here())
{
    Set(from, to, id, where);
    Wait(from, to, id, where);
}
inline void Barrier(Pipe pipe, Where where = Where::Here()) { TheCore().Barrier(pipe, where); }
inline void SyncAll(Where where = Where::Here()) { TheCore().SyncAll(where); }
inline void Clean(const uint8_t* gm, uint64_t bytes = 4, Where where = Where::Here())
{
    TheCore().CacheClean(gm, bytes, where);
}
inline void Mixed(Where where = Where::Here()) { TheCore().DeclareKernelType(KernelType::kMixAiv10, where); }
inline int64_t BlockIdx() { return TheCore().BlockIdx(); }
inline void OneCubeTwoVectors(Where where = Where::Here())
{
    TheCore().DeclareKernelType(KernelType::kMixAic12, where);
}
inline bool IsCube() { return TheCore().Kind() == CoreKind::kCube; }
inline int64_t SubBlock() { return TheCore().SubBlockIdx(); }
inline void Signal(Pipe pipe, int flag, Where where = Where::Here()) { TheCore().CrossCoreSet(2, pipe, flag, where); }
inline void Await(int flag, Where where = Where::Here()) { TheCore().CrossCoreWait(flag, where); }
