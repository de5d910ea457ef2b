// Failures with a text, which aclGetRecentErrMsg gives to the thread that failed.
#pragma once

#include <acl/acl.h>

#include <string>

namespace acl_emulator {

// Keeps `text` for this thread and returns `code`.
aclError Fail(aclError code, const std::string& text);

// Fails with the name of a function that the emulator does not have.
aclError FailUnimplemented(const char* function);

[[gnu::format(printf, 1, 2)]] void Trace(const char* format, ...);

}  // namespace acl_emulator
