#include "settings.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace acl_emulator {
namespace {

constexpr const char* kVariable = "ACL_EMULATOR";

// The value of a setting in the variable, or "".
std::string ValueOf(std::string_view name)
{
    const char* text = std::getenv(kVariable);
    std::string_view rest = text == nullptr ? "" : text;
    while (!rest.empty()) {
        const std::string_view entry = rest.substr(0, rest.find(';'));
        rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
        const size_t equals = entry.find('=');
        if (equals != entry.npos && entry.substr(0, equals) == name) return std::string(entry.substr(equals + 1));
    }
    return "";
}

// Sets `value` if the setting is there; a value outside [low, high] is kept as the error.
template <typename T>
void Read(const char* name, long low, long high, T& value, std::string& error)
{
    const std::string text = ValueOf(name);
    if (text.empty()) return;
    char* end = nullptr;
    const long number = std::strtol(text.c_str(), &end, 0);
    if (*end != '\0' || number < low || number > high) {
        error = std::string(kVariable) + ", " + name + ": expected an integer from " + std::to_string(low) + " to " +
                std::to_string(high) + ", got \"" + text + "\"";
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
    if (const std::string soc = ValueOf("soc"); !soc.empty()) settings.soc = soc;
    settings.vectorCores = VectorCores(settings.soc);
    size_t megabytes = settings.memoryBytes >> 20;
    Read("devices", 1, kMaxDevices, settings.devices, settings.error);
    Read("memory_mb", 1, 1 << 20, megabytes, settings.error);
    Read("vector_cores", 1, 1024, settings.vectorCores, settings.error);
    Read("asynchronous", 0, 1, settings.async, settings.error);
    Read("checks", 0, 1, settings.checks, settings.error);
    Read("trace", 0, 1, settings.trace, settings.error);
    Read("fill", 0, 255, settings.fill, settings.error);
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

std::string PlantedDefect() { return ValueOf("defect"); }

}  // namespace acl_emulator
