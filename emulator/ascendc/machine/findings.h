// What the host model reports: one Check per class of error, one Finding per place in the kernel that has it.
#pragma once

#include <cstdint>
#include <string>

namespace ascendc_host {

enum class Check : uint8_t {
    // Unified Buffer
    kLocalCapacity,     // more than the bytes that a kernel may use
    kLocalBounds,       // an access outside its local tensor; fatal
    kUninitialised,  // a read of UB bytes that nothing has written
    kAlignment,      // an operand that is not aligned as its instruction needs
    // global memory
    kGmBounds,         // an access outside every GM buffer, or outside its global tensor; fatal
    kGmUninitialised,  // a read of output or workspace bytes that nothing has written
    kGmReadOnly,       // a write to an argument that is an input
    // order of the pipes of one core
    kReadAfterWrite,
    kWriteAfterWrite,
    kWriteAfterRead,
    kStaleRegister,  // a register read by the scalar unit before the vector instruction that writes it has finished
    // flags
    kEventId,          // an event id out of range, or none left
    kFlagSetTwice,     // an event id set again before it was waited for
    kWaitWithoutSet,   // a wait that nothing ends; fatal
    kFlagNeverWaited,  // a flag that is still set at the end of the kernel
    // several cores
    kCrossCore,          // two cores touch the same bytes between two SyncAll, at least one writes
    kSyncAllCount,       // cores that call SyncAll a different number of times; fatal
    kSyncAllKernelType,  // SyncAll in a kernel whose type starts no scheduler for it
    kSyncAllBlocks,      // SyncAll with more blocks than cores
    // data cache of the scalar unit
    kStaleCache,       // a cached line read after its bytes in GM were written by DMA or by another core
    kUnflushedWrite,   // a scalar write to GM that is not cleaned out of the cache in time
    kSharedCacheLine,  // a cache line that two cores hold while one of them writes it
    // tensors and queues
    kUseAfterFree,
    kQueue,
    kLeak,
    // arguments of API calls
    kParameter,  // a count, mask, repeat, stride or type outside the documented range
    kOverlap,    // operands that overlap in a way the instruction does not allow
    // the kernel as a whole
    kUnsupported,  // a part of Ascend C that this model, or a vector core, does not have
    kException,    // a C++ exception left the kernel
    kCount,
};

// The name that reports and tests use: "LocalCapacity" for kLocalCapacity.
const char* CheckName(Check check);

struct Finding {
    Check check = Check::kCount;
    std::string file;  // the kernel's source
    int line = 0;
    std::string call;    // the API call that is at fault
    std::string what;    // what happened; addresses as "buffer name + byte offset"
    std::string remedy;  // what to change in the kernel
    int64_t block = 0;   // the first block that has it
    uint64_t count = 1;  // how often it happened at this place, over all blocks
};

}  // namespace ascendc_host
