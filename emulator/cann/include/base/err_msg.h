// Error reporting of CANN. A real process collects these messages for aclGetRecentErrMsg.
#pragma once

namespace cann_host {

// Keeps the message for the caller of the C functions in host.h.
void ReportError(const char* code, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace cann_host

// a macro because CANN has one under this name
#define REPORT_INNER_ERR_MSG(code, ...) cann_host::ReportError(code, __VA_ARGS__)
