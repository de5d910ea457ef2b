// Reads memory as fast as the threads of a call can: what a decode step could reach if it only had to read.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "arguments.h"
#include "rows.h"
#include "selection.h"
#include "vector.h"
#include "work.h"

namespace toptheta {

constexpr int64_t kChunkBytes = 256 << 10;  // as much as a granule of K
constexpr int64_t kBytesAhead = 4 << 10;    // from the loads to the prefetches
constexpr int kStreamedVectors = 8;         // loaded at once

// The largest of some floats: a use of every one of them that costs next to nothing and can be checked.
inline float largest_of(const float* from, int64_t count)
{
    constexpr int64_t kStep = kStreamedVectors * kLanes, kAhead = kBytesAhead / sizeof(float);
    Floats largest_lanes[kStreamedVectors];
    std::fill_n(largest_lanes, kStreamedVectors, broadcast(-kInfinity));
    int64_t done = 0;
    for (; done + kStep <= count; done += kStep) {
        prefetch<kNearCache>(from + done + kAhead, kStep);
        for (int i = 0; i < kStreamedVectors; ++i) {
            largest_lanes[i] = larger(load(from + done + i * kLanes), largest_lanes[i]);
        }
    }
    float found = -kInfinity;
    for (const Floats& lanes : largest_lanes) {
        found = std::max(found, largest(lanes));
    }
    for (; done < count; ++done) {
        found = std::max(found, from[done]);
    }
    return found;
}

// The same of all bytes as floats; up to three bytes that are left over are not read.
inline float read_all(const void* data, int64_t bytes, int64_t threads, RunInParallel run_in_parallel)
{
    constexpr int64_t kChunk = kChunkBytes / static_cast<int64_t>(sizeof(float));
    const float* from = static_cast<const float*>(data);
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    std::atomic<float> found(-kInfinity);
    run_items((count + kChunk - 1) / kChunk, threads, run_in_parallel, [&](int64_t chunk) {
        const float mine = largest_of(from + chunk * kChunk, std::min(kChunk, count - chunk * kChunk));
        float before = found.load(std::memory_order_relaxed);
        while (mine > before && !found.compare_exchange_weak(before, mine, std::memory_order_relaxed)) {
        }
    });
    return found.load(std::memory_order_relaxed);
}

}  // namespace toptheta
