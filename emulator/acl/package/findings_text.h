// The findings in a report of the host model.
#pragma once

#include <string>
#include <string_view>

namespace acl_emulator {

// One line for each finding of the JSON report, or nothing; also tells when the kernel did not reach its end.
std::string FindingsText(std::string_view report);

}  // namespace acl_emulator
