#include "device.h"

#include <unistd.h>

#include <array>
#include <string>

#include "error.h"
#include "settings.h"
#include "stream.h"

namespace acl_emulator {
namespace {

constexpr int64_t kL2Bytes = int64_t{192} << 20;
thread_local int t_device = -1;

// A context is the address of its device's element.
std::array<int, kMaxDevices>& Contexts()
{
    static std::array<int, kMaxDevices> contexts = [] {
        std::array<int, kMaxDevices> all{};
        for (uint32_t i = 0; i < kMaxDevices; ++i) all[i] = static_cast<int>(i);
        return all;
    }();
    return contexts;
}

}  // namespace

int CurrentDeviceOrFirst() { return t_device < 0 ? 0 : t_device; }

void SetCurrentDevice(int device) { t_device = device; }

}  // namespace acl_emulator

using namespace acl_emulator;

extern "C" {

aclError aclrtGetDeviceCount(uint32_t* count)
{
    *count = GetSettings().devices;
    return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device)
{
    if (device < 0 || static_cast<uint32_t>(device) >= GetSettings().devices) {
        return Fail(ACL_ERROR_RT_INVALID_DEVICEID,
                    "aclrtSetDevice: expected a device below " + std::to_string(GetSettings().devices) + ", got " +
                        std::to_string(device) + "; --devices of the emulator sets their number");
    }
    SetCurrentDevice(device);
    return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t* device)
{
    if (t_device < 0) return Fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetDevice: this thread has chosen no device");
    *device = t_device;
    return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }

aclError aclrtGetCurrentContext(aclrtContext* context)
{
    if (t_device < 0) {
        return Fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetCurrentContext: this thread has chosen no device");
    }
    *context = &Contexts()[t_device];
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    if (context == nullptr) return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtSetCurrentContext: expected a context");
    SetCurrentDevice(*static_cast<const int*>(context));
    return ACL_SUCCESS;
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active)
{
    if (flags != nullptr) *flags = 0;
    *active = t_device == device;
    return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo kind, int64_t* value)
{
    switch (kind) {
        case ACL_DEVICE_INFO_AI_CORE_NUM:
            *value = GetSettings().cubeCores;
            break;
        case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
            *value = GetSettings().vectorCores;
            break;
        default:
            *value = kL2Bytes;
    }
    return ACL_SUCCESS;
}

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t)
{
    *can = 1;
    return ACL_SUCCESS;
}

aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }

aclError aclrtDeviceGetBareTgid(int32_t* process)
{
    *process = getpid();
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo* rates)
{
    rates->cubeUtilization = rates->vectorUtilization = rates->aicpuUtilization = rates->memoryUtilization = 0;
    return ACL_SUCCESS;
}

const char* aclrtGetSocName() { return GetSettings().soc.c_str(); }

aclError aclrtSynchronizeDevice() { return SynchronizeDevice(CurrentDeviceOrFirst()); }

aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }

// Settings of a device that change nothing here.
aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }

aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t* actual)
{
    if (actual != nullptr) *actual = timeout;
    return ACL_SUCCESS;
}

aclError aclrtSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }

aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value)
{
    *value = 0;
    return ACL_SUCCESS;
}

}  // extern "C"
