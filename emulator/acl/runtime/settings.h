// What the environment variable ACL_EMULATOR says, "name=value;name=value": read once per process, but for the defect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace acl_emulator {

struct Settings {
    std::string soc = "Ascend910B1";
    uint32_t devices = 1;
    size_t memoryBytes = size_t{4096} << 20;  // of each device
    uint32_t cubeCores = 24;
    uint32_t vectorCores = 48;
    bool async = false;   // a worker thread per stream
    bool checks = true;   // the host model checks the kernels' memory accesses
    bool trace = false;   // a line on stderr for each allocation, copy and launch
    int fill = -1;        // byte that fresh device memory is filled with
    std::string error;    // what is wrong with a setting; aclInit fails with it
};

constexpr uint32_t kMaxDevices = 64;

const Settings& GetSettings();

// The name of the planted defect as the variable has it now, or "".
std::string PlantedDefect();

}  // namespace acl_emulator
