// Values attached to byte ranges; assigning a range replaces what it covers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace ascendc_host {

template <typename Value>
class IntervalMap {
public:
    void Clear() { ranges_.clear(); }

    void Assign(uint64_t begin, uint64_t end, const Value& value)
    {
        SplitAt(begin);
        SplitAt(end);
        ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
        ranges_[begin] = {end, value};
    }

    // visit(begin, end, value) for every part of [begin, end) that has a value, in order
    template <typename Visit>
    void ForEach(uint64_t begin, uint64_t end, Visit visit) const
    {
        auto it = ranges_.upper_bound(begin);
        if (it != ranges_.begin()) --it;
        for (; it != ranges_.end() && it->first < end; ++it) {
            if (it->second.end > begin) {
                visit(std::max(begin, it->first), std::min(end, it->second.end), it->second.value);
            }
        }
    }

private:
    struct Range {
        uint64_t end;
        Value value;
    };

    void SplitAt(uint64_t at)
    {
        auto it = ranges_.lower_bound(at);
        if (it == ranges_.begin()) return;
        it = std::prev(it);
        if (it->second.end <= at) return;
        ranges_[at] = it->second;
        it->second.end = at;
    }

    std::map<uint64_t, Range> ranges_;
};

}  // namespace ascendc_host
