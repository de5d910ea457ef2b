#include "gm_order.h"

namespace ascendc_host {

void GmOrder::FindUnorderedWrite(const Buffer& buffer, Check check, const Access& access, const Clock& finished,
                                 std::vector<Conflict>& conflicts)
{
    const size_t before = conflicts.size();
    buffer.writes.ForEach(access.begin, access.end, [&](uint64_t from, uint64_t, const Writer& writer) {
        const bool own = writer.slot == access.slot && writer.seq == access.seq;
        if (own || writer.seq <= finished[writer.slot] || conflicts.size() > before) return;
        conflicts.push_back({check, from, writer.slot, writer.seq});
    });
}

std::vector<GmOrder::Conflict> GmOrder::Read(int index, const Access& access, const Clock& finished)
{
    Buffer& buffer = buffers_[index];
    std::vector<Conflict> conflicts;
    FindUnorderedWrite(buffer, Check::kReadAfterWrite, access, finished, conflicts);
    buffer.reads[access.slot].Assign(access.begin, access.end, access.seq);
    return conflicts;
}

std::vector<GmOrder::Conflict> GmOrder::Write(int index, const Access& access, const Clock& finished)
{
    Buffer& buffer = buffers_[index];
    std::vector<Conflict> conflicts;
    FindUnorderedWrite(buffer, Check::kWriteAfterWrite, access, finished, conflicts);
    const size_t before = conflicts.size();
    for (int slot = 0; slot < kSlots; ++slot) {
        if (slot == access.slot) continue;  // a pipe is in order
        buffer.reads[slot].ForEach(access.begin, access.end, [&](uint64_t from, uint64_t, uint32_t seq) {
            if (seq <= finished[slot] || conflicts.size() > before) return;
            conflicts.push_back({Check::kWriteAfterRead, from, slot, seq});
        });
    }
    buffer.writes.Assign(access.begin, access.end, {access.slot, access.seq});
    return conflicts;
}

void GmOrder::Settle()
{
    for (Buffer& buffer : buffers_) {
        buffer.writes.Clear();
        for (auto& reads : buffer.reads) reads.Clear();
    }
}

}  // namespace ascendc_host
