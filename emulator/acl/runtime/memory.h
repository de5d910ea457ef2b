// Device memory: blocks of host memory that are counted against the limit of a device.
#pragma once

#include <acl/acl.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "settings.h"

namespace acl_emulator {

class DeviceMemory {
public:
    // The one object of the process; it is never destroyed, because worker threads may outlive main.
    static DeviceMemory& Get();

    aclError Allocate(int device, size_t bytes, void** address);
    aclError Free(void* address);
    std::optional<int> DeviceOf(const void* address, size_t bytes);  // of the block that holds the whole range
    size_t Used(int device);

    // Virtual memory: an address range of its own, and physical memory that only counts.
    aclError Reserve(int device, size_t bytes, void** address);
    aclError Release(void* address);
    aclError Take(int device, size_t bytes);
    void GiveBack(int device, size_t bytes);

private:
    struct Block {
        size_t bytes;
        int device;
        bool reserved;
    };

    aclError TakeLocked(int device, size_t bytes);

    std::mutex mutex_;
    std::map<uintptr_t, Block> blocks_;
    std::array<size_t, kMaxDevices> used_{};
};

}  // namespace acl_emulator
