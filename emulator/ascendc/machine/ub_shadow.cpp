#include "ub_shadow.h"

#include <algorithm>

namespace ascendc_host {

void UbShadow::ForgetContents(uint32_t ubOffset, uint32_t bytes) {
    const uint32_t end = ubOffset + bytes;
    while (ubOffset < end) {
        const uint32_t part = std::min(kUbBlockBytes - ubOffset % kUbBlockBytes, end - ubOffset);
        Block(ubOffset).initialised &= ~Mask(ubOffset, part);
        ubOffset += part;
    }
}

void UbShadow::KeepOlder(UbBlock& block, uint32_t overwritten) {
    const OlderWrite kept = {block.written & ~overwritten, block.writeSeq, block.writeSlot, block.older};
    if (freeOlder_ == UbBlock::kNoOlder) {
        block.older = static_cast<uint32_t>(older_.size());
        older_.push_back(kept);
        return;
    }
    block.older = freeOlder_;
    freeOlder_ = older_[freeOlder_].next;
    older_[block.older] = kept;
}

void UbShadow::TrimOlder(UbBlock& block, uint32_t overwritten) {
    uint32_t* link = &block.older;
    while (*link != UbBlock::kNoOlder) {
        OlderWrite& write = older_[*link];
        write.bytes &= ~overwritten;
        if (write.bytes != 0) {
            link = &write.next;
            continue;
        }
        const uint32_t emptied = *link;
        *link = write.next;
        write.next = freeOlder_;
        freeOlder_ = emptied;
    }
}

}  // namespace ascendc_host
