#include "error.h"

#include <cstdarg>
#include <cstdio>

#include "settings.h"

namespace acl_emulator {
namespace {

thread_local std::string t_recent;
thread_local std::string t_returned;

}  // namespace

aclError Fail(aclError code, const std::string& text)
{
    t_recent = "[emulated NPU] " + text;
    Trace("error %d: %s", code, text.c_str());
    return code;
}

aclError FailUnimplemented(const char* function)
{
    return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, std::string(function) + ": not implemented by the emulator");
}

void Trace(const char* format, ...)
{
    if (!GetSettings().trace) return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "[emulated NPU] %s\n", line);
}

}  // namespace acl_emulator

// As documented: the text is cleared when it is read. It stays valid until the next call of the thread.
extern "C" const char* aclGetRecentErrMsg()
{
    acl_emulator::t_returned = std::move(acl_emulator::t_recent);
    acl_emulator::t_recent.clear();
    return acl_emulator::t_returned.c_str();
}
