#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "device.h"
#include "error.h"
#include "stream.h"

namespace acl_emulator {
namespace {

constexpr size_t kAlignment = 512;  // of aclrtMalloc
constexpr size_t kSlack = 32;       // aclrtMalloc gives 32 bytes more than asked for

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

DeviceMemory& DeviceMemory::Get()
{
    static DeviceMemory* memory = new DeviceMemory;
    return *memory;
}

aclError DeviceMemory::TakeLocked(int device, size_t bytes)
{
    const size_t limit = GetSettings().memoryBytes;
    if (bytes > limit - used_[device]) {
        return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                    "out of device memory: " + std::to_string(bytes) + " bytes wanted, " +
                        std::to_string(limit - used_[device]) + " free of " + std::to_string(limit) + " on device " +
                        std::to_string(device) + "; --memory-mb of the emulator sets the limit");
    }
    used_[device] += bytes;
    return ACL_SUCCESS;
}

aclError DeviceMemory::Allocate(int device, size_t bytes, void** address)
{
    const std::lock_guard lock(mutex_);
    const size_t rounded = RoundUp(bytes + kSlack, kAlignment);
    if (const aclError error = TakeLocked(device, rounded); error != ACL_SUCCESS) return error;
    void* block = std::aligned_alloc(kAlignment, rounded);
    if (block == nullptr) {
        used_[device] -= rounded;
        return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of host memory for " + std::to_string(rounded) + " bytes");
    }
    if (GetSettings().fill >= 0) std::memset(block, GetSettings().fill, rounded);
    blocks_[reinterpret_cast<uintptr_t>(block)] = {rounded, device, false};
    *address = block;
    Trace("allocate %zu bytes on device %d: %p", bytes, device, block);
    return ACL_SUCCESS;
}

aclError DeviceMemory::Free(void* address)
{
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(address));
    if (found == blocks_.end() || found->second.reserved) {
        return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtFree: expected an address that aclrtMalloc returned");
    }
    Trace("free %p", address);
    used_[found->second.device] -= found->second.bytes;
    blocks_.erase(found);
    std::free(address);
    return ACL_SUCCESS;
}

std::optional<int> DeviceMemory::DeviceOf(const void* address, size_t bytes)
{
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(address);
    auto next = blocks_.upper_bound(begin);
    if (next == blocks_.begin()) return std::nullopt;
    const auto& [start, block] = *--next;
    const size_t offset = begin - start;
    if (offset > block.bytes || bytes > block.bytes - offset) return std::nullopt;
    return block.device;
}

size_t DeviceMemory::Used(int device)
{
    const std::lock_guard lock(mutex_);
    return used_[device];
}

aclError DeviceMemory::Reserve(int device, size_t bytes, void** address)
{
    void* range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no address range of " + std::to_string(bytes) + " bytes");
    }
    const std::lock_guard lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(range)] = {bytes, device, true};
    *address = range;
    return ACL_SUCCESS;
}

aclError DeviceMemory::Release(void* address)
{
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(address));
    if (found == blocks_.end() || !found->second.reserved) {
        return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtReleaseMemAddress: expected a reserved address");
    }
    munmap(address, found->second.bytes);
    blocks_.erase(found);
    return ACL_SUCCESS;
}

aclError DeviceMemory::Take(int device, size_t bytes)
{
    const std::lock_guard lock(mutex_);
    return TakeLocked(device, bytes);
}

void DeviceMemory::GiveBack(int device, size_t bytes)
{
    const std::lock_guard lock(mutex_);
    used_[device] -= bytes;
}

}  // namespace acl_emulator

using namespace acl_emulator;

namespace {

struct PhysicalMemory {
    int device;
    size_t bytes;
};

}  // namespace

extern "C" {

aclError aclrtMalloc(void** address, size_t bytes, aclrtMemMallocPolicy)
{
    if (address == nullptr || bytes == 0) return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMalloc: expected bytes > 0");
    return DeviceMemory::Get().Allocate(CurrentDeviceOrFirst(), bytes, address);
}

aclError aclrtMallocAlign32(void** address, size_t bytes, aclrtMemMallocPolicy policy)
{
    return aclrtMalloc(address, bytes, policy);
}

aclError aclrtFree(void* address)
{
    const std::optional<int> device = DeviceMemory::Get().DeviceOf(address, 1);
    // as on a device: memory is given back only when nothing that was launched can still use it
    if (device) SynchronizeDevice(*device);
    return DeviceMemory::Get().Free(address);
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total)
{
    *total = GetSettings().memoryBytes;
    *free = *total - DeviceMemory::Get().Used(CurrentDeviceOrFirst());
    return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** address, size_t bytes)
{
    *address = std::aligned_alloc(4096, RoundUp(bytes, 4096));
    return *address != nullptr ? ACL_SUCCESS : Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of host memory");
}

aclError aclrtMallocHostWithCfg(void** address, uint64_t bytes, aclrtMallocConfig*)
{
    return aclrtMallocHost(address, bytes);
}

aclError aclrtFreeHost(void* address)
{
    std::free(address);
    return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes)
{
    const std::optional<int> device = DeviceMemory::Get().DeviceOf(address, 1);
    *attributes = {};
    attributes->location.id = static_cast<uint32_t>(device.value_or(0));
    attributes->location.type = device ? ACL_MEM_LOCATION_TYPE_DEVICE : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    return ACL_SUCCESS;
}

aclError aclrtReserveMemAddress(void** address, size_t bytes, size_t, void*, uint64_t)
{
    return DeviceMemory::Get().Reserve(CurrentDeviceOrFirst(), bytes, address);
}

aclError aclrtReleaseMemAddress(void* address) { return DeviceMemory::Get().Release(address); }

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t bytes, const aclrtPhysicalMemProp*, uint64_t)
{
    const int device = CurrentDeviceOrFirst();
    if (const aclError error = DeviceMemory::Get().Take(device, bytes); error != ACL_SUCCESS) return error;
    *handle = reinterpret_cast<aclrtDrvMemHandle>(new PhysicalMemory{device, bytes});
    return ACL_SUCCESS;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle)
{
    const auto* memory = reinterpret_cast<const PhysicalMemory*>(handle);
    DeviceMemory::Get().GiveBack(memory->device, memory->bytes);
    delete memory;
    return ACL_SUCCESS;
}

aclError aclrtMapMem(void*, size_t, size_t, aclrtDrvMemHandle, uint64_t) { return ACL_SUCCESS; }

aclError aclrtUnmapMem(void*) { return ACL_SUCCESS; }

}  // extern "C"
