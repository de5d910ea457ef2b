#include "settings.h"

#include <cstdlib>
#include <string_view>

namespace acl_emulator {
namespace {

constexpr const char* kPrefix = "TOPTHETA_EMULATOR_";

// Sets `value` if the variable is there; a value outside [low, high] is kept as the error.
template <typename T>
void Read(const char* name, long low, long high, T& value, std::string& error)
{
    const std::string variable = std::string(kPrefix) + name;
    const char* text = std::getenv(variable.c_str());
    if (text == nullptr || *text == '\0') return;
    char* end = nullptr;
    const long number = std::strtol(text, &end, 0);
    if (*end != '\0' || number < low || number > high) {
        error = variable + ": expected an integer from " + std::to_string(low) + " to " + std::to_string(high) +
                ", got \"" + text + "\"";
        return;
    }
    value = static_cast<T>(number);
}

// Vector cores; a device has half as many cube cores (CANN, platform_config/Ascend910B*.ini).
uint32_t VectorCores(std::string_view soc)
{
    const bool small = soc.rfind("Ascend910B3", 0) == 0 || soc.rfind("Ascend910B4", 0) == 0 ||
                       soc.rfind("Ascend910_9362", 0) == 0 || soc.rfind("Ascend910_9372", 0) == 0;
    return small ? 40 : 48;
}

Settings FromEnvironment()
{
    Settings settings;
    if (const char* soc = std::getenv("TOPTHETA_EMULATOR_SOC"); soc != nullptr && *soc != '\0') settings.soc = soc;
    settings.vectorCores = VectorCores(settings.soc);
    size_t megabytes = settings.memoryBytes >> 20;
    Read("DEVICES", 1, kMaxDevices, settings.devices, settings.error);
    Read("MEMORY_MB", 1, 1 << 20, megabytes, settings.error);
    Read("VECTOR_CORES", 1, 1024, settings.vectorCores, settings.error);
    Read("ASYNC", 0, 1, settings.async, settings.error);
    Read("CHECKS", 0, 1, settings.checks, settings.error);
    Read("TRACE", 0, 1, settings.trace, settings.error);
    Read("FILL", 0, 255, settings.fill, settings.error);
    settings.memoryBytes = megabytes << 20;
    settings.cubeCores = (settings.vectorCores + 1) / 2;
    return settings;
}

}  // namespace

const Settings& GetSettings()
{
    static const Settings settings = FromEnvironment();
    return settings;
}

}  // namespace acl_emulator
