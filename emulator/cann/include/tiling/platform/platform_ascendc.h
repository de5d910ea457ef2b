// The SoC that a tiling function plans for.
#pragma once

#include <cstdint>

namespace fe {

class PlatFormInfos {
public:
    uint32_t cubeCores = 0;
    uint32_t vectorCores = 0;
    uint64_t ubBytes = 0;
    uint64_t l2Bytes = 0;
    uint32_t libApiWorkspaceBytes = 0;
};

}  // namespace fe

namespace platform_ascendc {

enum class CoreMemType { L0_A = 0, L0_B = 1, L0_C = 2, L1 = 3, L2 = 4, UB = 5, HBM = 6, RESERVED };

class PlatformAscendC {
public:
    explicit PlatformAscendC(fe::PlatFormInfos* infos) : infos_(infos) {}

    uint32_t GetCoreNumAic() const { return infos_->cubeCores; }
    uint32_t GetCoreNumAiv() const { return infos_->vectorCores; }
    uint32_t GetLibApiWorkSpaceSize() const { return infos_->libApiWorkspaceBytes; }
    // Only the Unified Buffer and the L2 are known here; other memories keep the caller's value.
    void GetCoreMemSize(const CoreMemType& type, uint64_t& bytes) const
    {
        if (type == CoreMemType::UB) {
            bytes = infos_->ubBytes;
        }
        if (type == CoreMemType::L2) {
            bytes = infos_->l2Bytes;
        }
    }

private:
    fe::PlatFormInfos* infos_;
};

}  // namespace platform_ascendc
