// Accesses of one core to global memory: by DMA, and by the scalar unit through its data cache.
#include <algorithm>

#include "core_impl.h"
#include "text.h"

namespace ascendc_host {

int CoreImpl::RequireGm(const void* address, uint64_t bytes, const Instruction& instruction, const char* access)
{
    const GmMemory& memory = machine.memory;
    const auto* first = static_cast<const uint8_t*>(address);
    if (lastGmBuffer < memory.Size() && memory[lastGmBuffer].Contains(first, bytes)) return lastGmBuffer;
    const int buffer = memory.Find(address, bytes);
    if (buffer < 0) {
        Fault(Check::kGmBounds, instruction.where_, instruction.call_,
              std::string(instruction.call_) + " " + access + " " + std::to_string(bytes) + " bytes at " +
                  memory.Describe(address) + ", which no argument of the kernel contains",
              "check the offset and the length against the size of the argument");
    }
    return lastGmBuffer = buffer;
}

void CoreImpl::LogAccess(const Instruction& instruction, int buffer, bool write, uint64_t begin, uint64_t end)
{
    log.Add({buffer, log.Epoch(), write, begin, end, instruction.call_, instruction.where_, instruction.slot_,
             instruction.seq_, static_cast<uint32_t>(knowledge.size() - 1)});
}

void CoreImpl::GmReadByDma(const Instruction& instruction, int index, uint64_t begin, uint64_t end)
{
    GmBuffer& buffer = machine.memory[index];
    traffic[index].bytesRead += end - begin;
    if (!checking || !buffer.writable) return;
    CheckGmInitialised(instruction, index, begin, end);
    const GmOrder::Access access = {begin, end, instruction.slot_, instruction.seq_};
    ReportGmOrder(instruction, index, gmOrder.Read(index, access, instruction.finished_));
    LogAccess(instruction, index, false, begin, end);
    cache.ForEach(index, begin, end, [&](uint64_t lineBegin, const DataCache::Line& line) {
        if ((line.dirty & LineMask(lineBegin, begin, end)) == 0) return;
        Report(Check::kUnflushedWrite, line.where, "SetValue",
               std::string(instruction.call_) + " at " + Place(instruction.where_) + " reads " +
                   machine.memory.Describe(buffer.base + lineBegin) + " from memory while the value is in the cache",
               "call DataCacheCleanAndInvalid on the line before the DMA");
    });
}

void CoreImpl::GmWriteByDma(const Instruction& instruction, int index, uint64_t begin, uint64_t end)
{
    GmBuffer& buffer = machine.memory[index];
    traffic[index].bytesWritten += end - begin;
    if (buffer.written) buffer.written->Mark(begin, end);
    if (!checking) return;
    CheckGmWritable(instruction, index, begin);
    const GmOrder::Access access = {begin, end, instruction.slot_, instruction.seq_};
    ReportGmOrder(instruction, index, gmOrder.Write(index, access, instruction.finished_));
    LogAccess(instruction, index, true, begin, end);
    cache.ForEach(index, begin, end, [&](uint64_t lineBegin, DataCache::Line& line) {
        line.stale |= LineMask(lineBegin, begin, end);
        if (line.dirty == 0) return;
        Report(Check::kSharedCacheLine, line.where, "SetValue",
               std::string(instruction.call_) + " at " + Place(instruction.where_) + " writes " +
                   machine.memory.Describe(buffer.base + begin) +
                   " while its cache line holds a scalar write; the whole line is written back",
               "call DataCacheCleanAndInvalid on the line before the DMA");
    });
}

void CoreImpl::ReportGmOrder(const Instruction& instruction, int buffer,
                             const std::vector<GmOrder::Conflict>& conflicts)
{
    for (const GmOrder::Conflict& conflict : conflicts) {
        const uint8_t* place = machine.memory[buffer].base + conflict.at;
        ReportOrder(conflict.check, instruction, machine.memory.Describe(place), conflict.slot, conflict.seq);
    }
}

bool CoreImpl::GmReadByScalar(const Instruction& instruction, int index, uint64_t begin, uint64_t end)
{
    GmBuffer& buffer = machine.memory[index];
    ++traffic[index].scalarReads;
    CheckGmInitialised(instruction, index, begin, end);
    bool hit = true;
    for (uint64_t number = begin / kCacheLineBytes; number * kCacheLineBytes < end; ++number) {
        DataCache::Lookup found = FillLine(instruction, index, number);
        DataCache::Line& line = found.line;
        hit = hit && found.hit;
        const uint64_t mask = LineMask(number * kCacheLineBytes, begin, end) & ~line.dirty;
        if (line.dirty == 0) line.where = instruction.where_;
        if (log.Epoch() > line.filledIn) {
            line.readLater |= mask;
            line.lastRead = log.Epoch();
        }
        if (checking && (line.stale & mask) != 0) {
            Report(Check::kStaleCache, instruction.where_, instruction.call_,
                   "the data cache holds " + machine.memory.Describe(buffer.base + begin) +
                       " as it was before this core's DMA wrote it",
                   "wait for the DMA with HardEvent::MTE3_S and call DataCacheCleanAndInvalid before the read");
        }
    }
    if (checking && buffer.writable) LogAccess(instruction, index, false, begin, end);
    return hit;
}

DataCache::Lookup CoreImpl::FillLine(const Instruction& instruction, int index, uint64_t number)
{
    DataCache::Lookup found = cache.Touch(index, number, log.Epoch());
    if (found.hit || !checking || !machine.memory[index].writable) return found;
    const uint64_t lineBegin = number * kCacheLineBytes;
    const uint64_t lineEnd = lineBegin + kCacheLineBytes;
    gmOrder.ForEachUnfinishedWrite(index, lineBegin, lineEnd, instruction.finished_, [&](uint64_t from, uint64_t to) {
        found.line.stale |= LineMask(lineBegin, from, to);
    });
    return found;
}

bool CoreImpl::GmWriteByScalar(const Instruction& instruction, int index, uint64_t begin, uint64_t end)
{
    GmBuffer& buffer = machine.memory[index];
    ++traffic[index].scalarWrites;
    if (buffer.written) buffer.written->Mark(begin, end);
    CheckGmWritable(instruction, index, begin);
    bool hit = true;
    for (uint64_t number = begin / kCacheLineBytes; number * kCacheLineBytes < end; ++number) {
        DataCache::Lookup found = FillLine(instruction, index, number);
        const uint64_t mask = LineMask(number * kCacheLineBytes, begin, end);
        hit = hit && found.hit;
        if (found.line.dirty == 0) found.line.dirtiedIn = log.Epoch();
        found.line.dirty |= mask;
        found.line.stale &= ~mask;
        found.line.where = instruction.where_;
    }
    return hit;
}

void CoreImpl::CheckGmInitialised(const Instruction& instruction, int index, uint64_t begin, uint64_t end)
{
    const GmBuffer& buffer = machine.memory[index];
    if (!checking || !buffer.written) return;
    const uint64_t unset = buffer.written->FirstUnset(begin, end);
    if (unset == end || findings.CountAgain(Check::kGmUninitialised, instruction.where_)) return;
    Report(Check::kGmUninitialised, instruction.where_, instruction.call_,
           std::string(instruction.call_) + " reads " + machine.memory.Describe(buffer.base + unset) +
               ", which no core has written",
           "write the bytes first; outputs and workspace start as garbage");
}

void CoreImpl::CheckGmWritable(const Instruction& instruction, int index, uint64_t begin)
{
    const GmBuffer& buffer = machine.memory[index];
    if (!checking || buffer.writable) return;
    Report(Check::kGmReadOnly, instruction.where_, instruction.call_,
           std::string(instruction.call_) + " writes " + machine.memory.Describe(buffer.base + begin) +
               ", which is an input of the kernel",
           "write to an output or to the workspace; an argument that is updated in place has the role inout");
}

// ---- DataCacheCleanAndInvalid --------------------------------------------------------------------------------------

void CoreImpl::LogLine(int buffer, uint64_t lineBegin, const DataCache::Line& line, uint32_t removedIn)
{
    if (!checking || !machine.memory[buffer].writable) return;
    log.cachedLines.push_back({buffer, lineBegin / kCacheLineBytes, line.filledIn, removedIn, line.readLater,
                               line.lastRead, line.dirty != 0, line.where});
    for (uint64_t byte = 0; byte < kCacheLineBytes;) {
        if ((line.dirty >> byte & 1) == 0) {
            ++byte;
            continue;
        }
        const uint64_t from = byte;
        while (byte < kCacheLineBytes && (line.dirty >> byte & 1) != 0) ++byte;
        log.cachedWrites.push_back({buffer, lineBegin + from, lineBegin + byte, line.dirtiedIn, removedIn, line.where});
    }
}

void CoreImpl::CleanBytes(const Instruction& instruction, int buffer, uint64_t begin, uint64_t end)
{
    cache.ForEach(buffer, begin, end, [&](uint64_t lineBegin, DataCache::Line& line) {
        const uint64_t mask = LineMask(lineBegin, begin, end);
        DataCache::Line cleaned = line;
        cleaned.dirty &= mask;
        WriteBack(instruction, buffer, lineBegin, cleaned);
        line.dirty &= ~mask;  // the instruction works on the bytes from its address to the end of the line
    });
    for (uint64_t line = begin / kCacheLineBytes; line * kCacheLineBytes < end; ++line) cache.RemoveClean(buffer, line);
}

void CoreImpl::WriteBack(const Instruction& instruction, int buffer, uint64_t lineBegin, const DataCache::Line& line)
{
    const size_t before = log.cachedWrites.size();
    LogLine(buffer, lineBegin, line, log.Epoch());
    for (size_t i = before; i < log.cachedWrites.size(); ++i) {
        const CachedWrite& write = log.cachedWrites[i];
        const GmOrder::Access access = {write.begin, write.end, kScalar, instruction.seq_};
        ReportGmOrder(instruction, buffer, gmOrder.Write(buffer, access, instruction.finished_));
        log.Add({buffer, log.Epoch(), true, write.begin, write.end, "SetValue", line.where, kScalar, instruction.seq_,
                 static_cast<uint32_t>(knowledge.size() - 1)});
    }
}

void Core::CacheClean(const void* gm, uint64_t bytes, Where where)
{
    Instruction instruction(Pipe::kS, "DataCacheCleanAndInvalid", where);
    const int index = impl_->RequireGm(gm, 1, instruction, "cleans");
    const GmBuffer& buffer = impl_->machine.memory[index];
    const auto begin = static_cast<uint64_t>(static_cast<const uint8_t*>(gm) - buffer.base);
    const uint64_t end = (begin + bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
    impl_->CleanBytes(instruction, index, begin, std::min(end, buffer.bytes));
}

void Core::CacheCleanAll(Where where)
{
    Instruction instruction(Pipe::kS, "DataCacheCleanAndInvalid", where);
    impl_->cache.ForEachLine([&](int buffer, uint64_t lineBegin, const DataCache::Line& line) {
        impl_->WriteBack(instruction, buffer, lineBegin, line);
    });
    impl_->cache.Clear();
}

}  // namespace ascendc_host
