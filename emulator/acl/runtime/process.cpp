// Start, end, versions, logging, and hooks for tools that are not there.
#include <acl/acl.h>
#include <acl/acl_prof.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string_view>

#include "error.h"
#include "settings.h"

using namespace acl_emulator;

extern "C" {

aclError aclInit(const char*)
{
    const std::string& error = GetSettings().error;
    return error.empty() ? ACL_SUCCESS : Fail(ACL_ERROR_RT_PARAM_INVALID, error);
}

aclError aclFinalize() { return ACL_SUCCESS; }

void aclAppLog(aclLogLevel level, const char* function, const char*, uint32_t, const char* format, ...)
{
    if (!GetSettings().trace || level < ACL_WARNING) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    Trace("log of %s: %s", function, text);
}

aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

aclError aclmdlInitDump() { return ACL_SUCCESS; }
aclError aclmdlSetDump(const char*) { return ACL_SUCCESS; }
aclError aclmdlFinalizeDump() { return ACL_SUCCESS; }

// The profiler's hooks; without a profiler nothing is reported.
int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
uint64_t MsprofGetHashId(const char* text, size_t size) { return std::hash<std::string_view>()({text, size}); }
uint64_t MsprofSysCycleTime() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // extern "C"
