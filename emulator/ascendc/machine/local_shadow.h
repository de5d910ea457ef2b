// What is known about every byte of a core's local memories: whether it was written, by which instruction, who reads
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "clock.h"

namespace ascendc_host {

constexpr uint32_t kShadowBlockBytes = 32;

// Masks have one bit per byte of a 32-byte block.
struct ShadowBlock {
    static constexpr uint32_t kNoOlder = ~0u;

    uint32_t initialised = 0;
    uint32_t written = 0;  // the bytes of the newest write that is still visible
    uint32_t writeSeq = 0;
    int writeSlot = 0;
    uint32_t older = kNoOlder;  // list of older writes of other bytes
    std::array<uint32_t, kSlots> read = {};
    std::array<uint32_t, kSlots> readSeq = {};
};

class LocalShadow {
public:
    struct OlderWrite {
        uint32_t bytes;
        uint32_t seq;
        int slot;
        uint32_t next;
    };

    explicit LocalShadow(uint32_t bytes) : blocks_(bytes / kShadowBlockBytes) {}

    ShadowBlock& Block(uint32_t offset) { return blocks_[offset / kShadowBlockBytes]; }
    const OlderWrite& Older(uint32_t index) const { return older_[index]; }

    static uint32_t Mask(uint32_t offset, uint32_t bytes)
    {
        return (bytes >= kShadowBlockBytes ? ~0u : (1u << bytes) - 1) << (offset % kShadowBlockBytes);
    }

    void ForgetContents(uint32_t offset, uint32_t bytes);     // the bytes count as unwritten from here on
    void KeepOlder(ShadowBlock& block, uint32_t overwritten);  // before a write: remember the rest of the newest
    void TrimOlder(ShadowBlock& block, uint32_t overwritten);  // drop what the write hides

private:
    std::vector<ShadowBlock> blocks_;
    std::vector<OlderWrite> older_;
    uint32_t freeOlder_ = ShadowBlock::kNoOlder;
};

}  // namespace ascendc_host
