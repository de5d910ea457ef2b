// The device of the calling thread.
#pragma once

#include <acl/acl.h>

namespace acl_emulator {

int CurrentDeviceOrFirst();        // device 0 for a thread that has not chosen one
void SetCurrentDevice(int device);

}  // namespace acl_emulator
