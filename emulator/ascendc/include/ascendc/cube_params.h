// Parameter structures of the cube's calls, with the fields and defaults of the public headers.
//
// Fields are wider here than the 8 and 16 bits of the public headers, so that a value that would wrap there is reported
// as out of range and does not silently become another one.
#pragma once

#include <cstdint>

// Global, as in the toolkit's compiler; only NoQuant is in this model.
enum QuantMode_t {
    NoQuant = 0,
    F322F16 = 1,
    VREQ8 = 8,
    REQ8 = 9,
    VDEQF16 = 10,
    DEQF16 = 11,
    F322BF16 = 16,
    VQF322B8_PRE = 23,
    QF322B8_PRE = 24,
};

namespace AscendC {

struct Nd2NzParams {
    Nd2NzParams() = default;
    Nd2NzParams(const uint32_t ndNumIn, const uint32_t nValueIn, const uint32_t dValueIn,
                const uint32_t srcNdMatrixStrideIn, const uint32_t srcDValueIn, const uint32_t dstNzC0StrideIn,
                const uint32_t dstNzNStrideIn, const uint32_t dstNzMatrixStrideIn)
        : ndNum(ndNumIn),
          nValue(nValueIn),
          dValue(dValueIn),
          srcNdMatrixStride(srcNdMatrixStrideIn),
          srcDValue(srcDValueIn),
          dstNzC0Stride(dstNzC0StrideIn),
          dstNzNStride(dstNzNStrideIn),
          dstNzMatrixStride(dstNzMatrixStrideIn)
    {}

    uint32_t ndNum = 0;
    uint32_t nValue = 0;
    uint32_t dValue = 0;
    uint32_t srcNdMatrixStride = 0;
    uint32_t srcDValue = 0;
    uint32_t dstNzC0Stride = 0;
    uint32_t dstNzNStride = 0;
    uint32_t dstNzMatrixStride = 0;
};

struct LoadData2DParams {
    LoadData2DParams() = default;
    LoadData2DParams(const uint32_t startIndexIn, const uint32_t repeatTimesIn, const uint32_t srcStrideIn,
                     const uint8_t sidIn, const uint32_t dstGapIn, const bool ifTransposeIn, const uint8_t addrModeIn)
        : startIndex(startIndexIn),
          dstGap(dstGapIn),
          srcStride(srcStrideIn),
          ifTranspose(ifTransposeIn),
          repeatTimes(repeatTimesIn),
          sid(sidIn),
          addrMode(addrModeIn)
    {}

    uint32_t startIndex = 0;
    uint32_t dstGap = 0;
    uint32_t srcStride = 0;
    bool ifTranspose = false;
    uint32_t repeatTimes = 0;
    uint8_t sid = 0;
    uint8_t addrMode = 0;
};
using LoadData2dParams = LoadData2DParams;

struct MmadParams {
    MmadParams() = default;
    MmadParams(const uint32_t mIn, const uint32_t nIn, const uint32_t kIn, const uint8_t unitFlagIn,
               const bool cmatrixSourceIn, const bool cmatrixInitValIn)
        : m(mIn), n(nIn), k(kIn), unitFlag(unitFlagIn), cmatrixSource(cmatrixSourceIn), cmatrixInitVal(cmatrixInitValIn)
    {}
    MmadParams(const uint32_t mIn, const uint32_t nIn, const uint32_t kIn, const bool isBiasIn,
               const int32_t fmOffsetIn, const bool enSsparseIn, const bool enWinogradAIn, const bool enWinogradBIn)
        : m(mIn),
          n(nIn),
          k(kIn),
          isBias(isBiasIn),
          fmOffset(fmOffsetIn),
          enSsparse(enSsparseIn),
          enWinogradA(enWinogradAIn),
          enWinogradB(enWinogradBIn)
    {}

    uint32_t m = 0;
    uint32_t n = 0;
    uint32_t k = 0;
    bool isBias = false;  // the older way to ask for C += A * B
    int32_t fmOffset = 0;
    bool enSsparse = false;
    bool enWinogradA = false;
    bool enWinogradB = false;
    uint8_t unitFlag = 0;
    bool kDirectionAlign = false;
    bool cmatrixSource = false;
    bool cmatrixInitVal = true;
};

enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };

struct FixpipeConfig {
    CO2Layout format;
};

constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};
constexpr FixpipeConfig CFG_COLUMN_MAJOR = {CO2Layout::COLUMN_MAJOR};

struct FixpipeParamsV220 {
    FixpipeParamsV220() = default;
    FixpipeParamsV220(const uint32_t nSizeIn, const uint32_t mSizeIn, const uint32_t srcStrideIn,
                      const uint32_t dstStrideIn, const bool reluEnIn)
        : nSize(nSizeIn), mSize(mSizeIn), srcStride(srcStrideIn), dstStride(dstStrideIn), reluEn(reluEnIn)
    {}
    FixpipeParamsV220(const uint32_t nSizeIn, const uint32_t mSizeIn, const uint32_t srcStrideIn,
                      const uint32_t dstStrideIn, const bool reluEnIn, const QuantMode_t quantPreIn,
                      const int64_t deqScalarIn, const uint32_t ndNumIn, const uint32_t srcNdStrideIn,
                      const uint32_t dstNdStrideIn, const uint8_t unitFlagIn, const bool isChannelSplitIn = false)
        : nSize(nSizeIn),
          mSize(mSizeIn),
          srcStride(srcStrideIn),
          dstStride(dstStrideIn),
          quantPre(quantPreIn),
          deqScalar(static_cast<uint64_t>(deqScalarIn)),
          ndNum(ndNumIn),
          srcNdStride(srcNdStrideIn),
          dstNdStride(dstNdStrideIn),
          reluEn(reluEnIn),
          unitFlag(unitFlagIn),
          isChannelSplit(isChannelSplitIn)
    {}

    uint32_t nSize = 0;
    uint32_t mSize = 0;
    uint32_t srcStride = 0;
    uint32_t dstStride = 0;
    QuantMode_t quantPre = QuantMode_t::NoQuant;
    uint64_t deqScalar = 0;
    uint32_t ndNum = 1;
    uint32_t srcNdStride = 0;
    uint32_t dstNdStride = 0;
    bool reluEn = false;
    uint8_t unitFlag = 0;
    bool isChannelSplit = false;
};

}  // namespace AscendC
