#include "data_cache.h"

#include <algorithm>

namespace ascendc_host {

uint64_t LineMask(uint64_t lineBegin, uint64_t begin, uint64_t end)
{
    const uint64_t from = std::max(begin, lineBegin) - lineBegin;
    const uint64_t to = std::min(end, lineBegin + kCacheLineBytes);
    if (to <= lineBegin + from) return 0;
    const uint64_t bytes = to - lineBegin - from;
    return (bytes == kCacheLineBytes ? ~0ull : (1ull << bytes) - 1) << from;
}

DataCache::Lookup DataCache::Touch(int buffer, uint64_t line, uint32_t epoch)
{
    auto [entry, filled] = lines_.try_emplace(Key(buffer, line));
    if (filled) entry->second.filledIn = epoch;
    return {entry->second, !filled};
}

void DataCache::RemoveClean(int buffer, uint64_t line)
{
    auto found = lines_.find(Key(buffer, line));
    if (found != lines_.end() && found->second.dirty == 0) lines_.erase(found);
}

std::vector<uint64_t> DataCache::SortedKeys() const
{
    std::vector<uint64_t> keys;
    for (const auto& entry : lines_) keys.push_back(entry.first);
    std::sort(keys.begin(), keys.end());
    return keys;
}

}  // namespace ascendc_host
