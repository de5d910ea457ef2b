// Where the results of Mmad lie in L0C, as long as Fixpipe has not read them.
//
// A result is laid out by fractals, column by column, without a stride between them. So a product that begins at a row
// inside a larger matrix lands on the next columns of what stands there, unless it has one column of fractals only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vector_shape.h"

namespace ascendc_host {

struct MmadResult {
    uint64_t begin, end;    // bytes of L0C
    uint64_t columnBytes;  // of a column of fractals

    bool Meets(uint64_t first, uint64_t last) const { return begin < last && first < end; }
    bool IsColumnsOf(const MmadResult& whole) const
    {
        return begin >= whole.begin && end <= whole.end && columnBytes == whole.columnBytes &&
               (begin - whole.begin) % columnBytes == 0;
    }
    // One of the two begins inside the other, and not as columns of it or from its beginning on.
    bool IsShiftedAgainst(const MmadResult& other) const
    {
        if (begin == other.begin || !Meets(other.begin, other.end) || IsColumnsOf(other)) return false;
        return begin > other.begin || end < other.end;
    }
};

// One core runs on a host thread at a time. TPipe begins anew.
inline std::vector<MmadResult>& UnreadResults()
{
    static thread_local std::vector<MmadResult> results;
    return results;
}

inline void ForgetResults(uint64_t first, uint64_t last)
{
    std::vector<MmadResult>& results = UnreadResults();
    const auto isMet = [&](const MmadResult& result) { return result.Meets(first, last); };
    results.erase(std::remove_if(results.begin(), results.end(), isMet), results.end());
}

inline void PlaceResult(const CallSite& site, const MmadResult& result)
{
    std::vector<MmadResult>& results = UnreadResults();
    const auto isShifted = [&](const MmadResult& other) { return result.IsShiftedAgainst(other); };
    const auto isPart = [&](const MmadResult& other) {
        return result.begin != other.begin && result.IsColumnsOf(other);
    };
    if (std::any_of(results.begin(), results.end(), isShifted)) {
        site.Report(
            Check::kOverlap,
            "the result lands on fractals of another product that Fixpipe has not read, at another row of it",
            "multiply all rows in one Mmad, or give each product a place of its own: m rounded up to 16 times n "
            "rounded up to 16 numbers");
    }
    if (std::any_of(results.begin(), results.end(), isPart)) return;
    ForgetResults(result.begin, result.end);
    results.push_back(result);
}

}  // namespace ascendc_host
