// Defects that can be planted in the machine: what a device would do where our reading of a document is wrong. A test
// plants one to see that a check of the device finds it. Off unless a launch names one; a launch with a
// planted defect runs one core after the other, so that what goes wrong does so every time, and checks nothing but
// bounds, as a device.
#pragma once

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

namespace ascendc_host {

enum class Defect : int {
    kNone,
    kReversedMaskBits,  // Compare: the first element of a byte is its most significant bit
    kGatherMaskCountsDropped,  // the register counts the elements that GatherMask has left out
    kSelectStridesIgnored,  // Select reads its sources without gaps
    kMultiplyAddInHalf,  // MulAddDst rounds the product of two halves to half
    kInt8StridesIgnored,  // Cast reads int8 blocks without gaps
    kExpInHalf,  // Exp and Ln give ten bits behind the point
    kLnInHalf,
    kBoundsSpoiltByInfinities,  // Maxs and Mins of an infinity give NaN
    kExpOfInfinityIsOne,  // of -inf
    kExpOfLowestIsOne,  // of the lowest finite numbers
    kWideGapsWrap,  // DataCopyPad takes gaps modulo 2^30 bytes
    kGapsOfOutputsIgnored,  // DataCopyPad writes rows to global memory without gaps
    kTopOfUbTaken,  // the last KiB of the Unified Buffer belongs to somebody else
    kSyncAllLetsThrough,  // no core waits at a SyncAll
    kBlockIndexAcrossBlocks,  // GetBlockIdx counts the first vector cores of all blocks, then the second ones
    kCubeWaitsForNoFlag,  // CrossCoreWaitFlag of a cube core returns at once
    kFractalsRowByRow,  // DataCopy to L1 lays the fractals of 16 rows side by side
    kFixpipeWritesWholeFractals,  // 16 rows, however many it is asked for
    kMmadDropsNan,  // a NaN counts as 0
    kInt8SumsIn16Bits,  // Mmad of int8 adds in 16 bits
    // of the runtime below torch_npu
    kEmptyOutputSkipsLaunch,  // one output of no elements, and the kernel does not run
    kStridesIgnored,  // tiling sees the strides of a contiguous tensor
    kFirstKernelForAllTypes,  // the kernel of the first column, whatever the dtype of the query
    kFirstKeyDoesNotStart,  // a launch with tiling key 1 does nothing
    kReplayWithCapturedLengths  // integer inputs keep the values that they had when the launch was queued
};

struct DefectName {
    Defect defect;
    const char* name;
};

constexpr std::array kDefectNames = {
    DefectName{Defect::kReversedMaskBits, "reversed-mask-bits"},
    DefectName{Defect::kGatherMaskCountsDropped, "gather-mask-counts-dropped"},
    DefectName{Defect::kSelectStridesIgnored, "select-strides-ignored"},
    DefectName{Defect::kMultiplyAddInHalf, "multiply-add-in-half"},
    DefectName{Defect::kInt8StridesIgnored, "int8-strides-ignored"},
    DefectName{Defect::kExpInHalf, "exp-in-half"},
    DefectName{Defect::kLnInHalf, "ln-in-half"},
    DefectName{Defect::kBoundsSpoiltByInfinities, "bounds-spoilt-by-infinities"},
    DefectName{Defect::kExpOfInfinityIsOne, "exp-of-infinity-is-one"},
    DefectName{Defect::kExpOfLowestIsOne, "exp-of-lowest-is-one"},
    DefectName{Defect::kWideGapsWrap, "wide-gaps-wrap"},
    DefectName{Defect::kGapsOfOutputsIgnored, "gaps-of-outputs-ignored"},
    DefectName{Defect::kTopOfUbTaken, "top-of-ub-taken"},
    DefectName{Defect::kSyncAllLetsThrough, "sync-all-lets-through"},
    DefectName{Defect::kBlockIndexAcrossBlocks, "block-index-across-blocks"},
    DefectName{Defect::kCubeWaitsForNoFlag, "cube-waits-for-no-flag"},
    DefectName{Defect::kFractalsRowByRow, "fractals-row-by-row"},
    DefectName{Defect::kFixpipeWritesWholeFractals, "fixpipe-writes-whole-fractals"},
    DefectName{Defect::kMmadDropsNan, "mmad-drops-nan"},
    DefectName{Defect::kInt8SumsIn16Bits, "int8-sums-in-16-bits"},
    DefectName{Defect::kEmptyOutputSkipsLaunch, "empty-output-skips-launch"},
    DefectName{Defect::kStridesIgnored, "strides-ignored"},
    DefectName{Defect::kFirstKernelForAllTypes, "first-kernel-for-all-types"},
    DefectName{Defect::kFirstKeyDoesNotStart, "first-key-does-not-start"},
    DefectName{Defect::kReplayWithCapturedLengths, "replay-with-captured-lengths"},
};

// Throws std::invalid_argument for a name that there is not; "" is none.
inline Defect DefectOf(const std::string& wanted)
{
    if (wanted.empty()) return Defect::kNone;
    std::string known;
    for (const DefectName& entry : kDefectNames) {
        if (wanted == entry.name) return entry.defect;
        known += (known.empty() ? "" : ", ") + std::string(entry.name);
    }
    throw std::invalid_argument("defect: expected one of " + known + ", got \"" + wanted +
                                "\"; leave it out for a machine without defects");
}

inline std::atomic<Defect> plantedDefect{Defect::kNone};  // of the launch under way

inline bool Planted(Defect defect) { return plantedDefect.load(std::memory_order_relaxed) == defect; }

}  // namespace ascendc_host
