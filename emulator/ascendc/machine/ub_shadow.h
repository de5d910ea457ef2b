// What is known about every byte of the Unified Buffer: whether it was written, by which instruction, who reads it.
#pragma once

#include <cstdint>
#include <vector>

#include "clock.h"

namespace ascendc_host {

constexpr uint32_t kUbBytes = 192 * 1024;
constexpr uint32_t kUbBlockBytes = 32;
// 192 KiB less the 8 KiB that the system reserves and the 256 B that a mixed kernel loses (asc-devkit, NPU 2201).
constexpr uint32_t kUbUserBytes = 184 * 1024 - 256;

// Masks have one bit per byte of a 32-byte block.
struct UbBlock {
    static constexpr uint32_t kNoOlder = ~0u;

    uint32_t initialised = 0;
    uint32_t written = 0;  // the bytes of the newest write that is still visible
    uint32_t writeSeq = 0;
    int writeSlot = 0;
    uint32_t older = kNoOlder;  // list of older writes of other bytes
    std::array<uint32_t, kSlots> read = {};
    std::array<uint32_t, kSlots> readSeq = {};
};

class UbShadow {
public:
    struct OlderWrite {
        uint32_t bytes;
        uint32_t seq;
        int slot;
        uint32_t next;
    };

    explicit UbShadow(uint32_t bytes) : blocks_(bytes / kUbBlockBytes) {}

    UbBlock& Block(uint32_t ubOffset) { return blocks_[ubOffset / kUbBlockBytes]; }
    const OlderWrite& Older(uint32_t index) const { return older_[index]; }

    static uint32_t Mask(uint32_t ubOffset, uint32_t bytes) {
        return (bytes >= kUbBlockBytes ? ~0u : (1u << bytes) - 1) << (ubOffset % kUbBlockBytes);
    }

    void ForgetContents(uint32_t ubOffset, uint32_t bytes);     // the bytes count as unwritten from here on
    void KeepOlder(UbBlock& block, uint32_t overwritten);       // before a write: remember the rest of the newest one
    void TrimOlder(UbBlock& block, uint32_t overwritten);       // drop what the write hides

private:
    std::vector<UbBlock> blocks_;
    std::vector<OlderWrite> older_;
    uint32_t freeOlder_ = UbBlock::kNoOlder;
};

}  // namespace ascendc_host
