#include "local_shadow.h"

#include <algorithm>

namespace ascendc_host {

void LocalShadow::ForgetContents(uint32_t offset, uint32_t bytes)
{
    const uint32_t end = offset + bytes;
    while (offset < end) {
        const uint32_t part = std::min(kShadowBlockBytes - offset % kShadowBlockBytes, end - offset);
        Block(offset).initialised &= ~Mask(offset, part);
        offset += part;
    }
}

void LocalShadow::KeepOlder(ShadowBlock& block, uint32_t overwritten)
{
    const OlderWrite kept = {block.written & ~overwritten, block.writeSeq, block.writeSlot, block.older};
    if (freeOlder_ == ShadowBlock::kNoOlder) {
        block.older = static_cast<uint32_t>(older_.size());
        older_.push_back(kept);
        return;
    }
    block.older = freeOlder_;
    freeOlder_ = older_[freeOlder_].next;
    older_[block.older] = kept;
}

void LocalShadow::TrimOlder(ShadowBlock& block, uint32_t overwritten)
{
    uint32_t* link = &block.older;
    while (*link != ShadowBlock::kNoOlder) {
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
