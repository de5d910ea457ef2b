// A recorded operator definition as JSON.
#pragma once

#include <string>

#include "register/op_def_registry.h"

namespace cann_host {

std::string DescribeAsJson(const ops::OpDef& definition);

}  // namespace cann_host
