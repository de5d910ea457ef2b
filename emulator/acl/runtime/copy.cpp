// Copies and fills: checked when they are asked for, done on the stream.
#include <cstring>
#include <string>

#include "device.h"
#include "error.h"
#include "memory.h"
#include "stream.h"

using namespace acl_emulator;

namespace {

aclError CheckDeviceRange(const char* function, const char* which, const void* address, size_t bytes)
{
    if (DeviceMemory::Get().DeviceOf(address, bytes)) return ACL_SUCCESS;
    return Fail(ACL_ERROR_RT_PARAM_INVALID, std::string(function) + ": expected device memory as " + which + " for " +
                                                std::to_string(bytes) + " bytes, got another address");
}

aclError CheckHostAddress(const char* function, const char* which, const void* address)
{
    if (!DeviceMemory::Get().DeviceOf(address, 1)) return ACL_SUCCESS;
    return Fail(ACL_ERROR_RT_PARAM_INVALID,
                std::string(function) + ": expected host memory as " + which + ", got device memory");
}

aclError CheckCopy(const char* function, const void* target, size_t room, const void* source, size_t bytes,
                   aclrtMemcpyKind kind)
{
    if (bytes > room || target == nullptr || source == nullptr) {
        return Fail(ACL_ERROR_RT_PARAM_INVALID, std::string(function) + ": expected two addresses and at most " +
                                                    std::to_string(room) + " bytes, got " + std::to_string(bytes));
    }
    if (kind > ACL_MEMCPY_DEVICE_TO_DEVICE) return ACL_SUCCESS;  // the addresses decide
    const bool toDevice = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
    const bool fromDevice = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
    const aclError error =
        toDevice ? CheckDeviceRange(function, "target", target, bytes) : CheckHostAddress(function, "target", target);
    if (error != ACL_SUCCESS) return error;
    return fromDevice ? CheckDeviceRange(function, "source", source, bytes)
                      : CheckHostAddress(function, "source", source);
}

}  // namespace

extern "C" {

aclError aclrtMemcpy(void* target, size_t room, const void* source, size_t bytes, aclrtMemcpyKind kind)
{
    if (bytes == 0) return ACL_SUCCESS;
    if (const aclError error = CheckCopy("aclrtMemcpy", target, room, source, bytes, kind)) return error;
    Trace("copy %zu bytes, kind %d", bytes, kind);
    std::memmove(target, source, bytes);
    return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* target, size_t room, const void* source, size_t bytes, aclrtMemcpyKind kind,
                          aclrtStream stream)
{
    if (bytes == 0) return ACL_SUCCESS;
    if (const aclError error = CheckCopy("aclrtMemcpyAsync", target, room, source, bytes, kind)) return error;
    if (const aclError error = CheckStream("aclrtMemcpyAsync", stream)) return error;
    Trace("copy %zu bytes, kind %d, on stream %p", bytes, kind, stream);
    return Enqueue(stream, [=] {
        std::memmove(target, source, bytes);
        return std::string();
    });
}

aclError aclrtMemset(void* target, size_t room, int32_t value, size_t bytes)
{
    if (const aclError error = CheckCopy("aclrtMemset", target, room, target, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE)) {
        return error;
    }
    std::memset(target, value, bytes);
    return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void* target, size_t room, int32_t value, size_t bytes, aclrtStream stream)
{
    if (const aclError error =
            CheckCopy("aclrtMemsetAsync", target, room, target, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE)) {
        return error;
    }
    return Enqueue(stream, [=] {
        std::memset(target, value, bytes);
        return std::string();
    });
}

}  // extern "C"
