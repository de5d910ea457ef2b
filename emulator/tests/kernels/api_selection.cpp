// CompareScalar, Select, GatherMask, Gather and index vectors.
#include "api_harness.h"

using namespace harness;

constexpr uint32_t kSize = 512;
constexpr CMPMODE kModes[] = {CMPMODE::LT, CMPMODE::GT, CMPMODE::EQ, CMPMODE::LE, CMPMODE::GE, CMPMODE::NE};

// Each mode against 1; rows of kSize / 8 bytes.
template <typename T>
__aicore__ inline void CompareRows(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kSize);
    LocalTensor<uint8_t> bits = bench.Make<uint8_t>(kSize / 8);
    uint32_t row = 0;
    for (CMPMODE mode : kModes) {
        CompareScalar(bits, a, static_cast<T>(1), mode, kSize);
        bench.Store(z, bits, kSize / 8, row++ * kSize / 8);
    }
}

template <typename T>
__aicore__ inline void SelectRows(GM_ADDR x, GM_ADDR y, GM_ADDR bits, GM_ADDR z)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kSize);
    LocalTensor<T> b = bench.Load<T>(y, kSize);
    LocalTensor<uint8_t> mask = bench.Load<uint8_t>(bits, kSize / 8);
    LocalTensor<T> d = bench.Filled<T>(kSize, static_cast<T>(-9));
    Select(d, mask, a, static_cast<T>(2), SELMODE::VSEL_TENSOR_SCALAR_MODE, 300);
    bench.Store(z, d, kSize, 0);
    Select(d, mask, a, b, SELMODE::VSEL_TENSOR_TENSOR_MODE, 40, 3, BinaryRepeatParams(1, 1, 0, 8, 8, 1));
    bench.Store(z, d, kSize, kSize);
    uint64_t lanes[2] = {0xf0f0, 0};
    Select(d, mask, a, static_cast<T>(3), SELMODE::VSEL_TENSOR_SCALAR_MODE, lanes, 2,
           BinaryRepeatParams(1, 1, 1, 8, 8, 8));
    bench.Store(z, d, kSize, 2 * kSize);
}

// The destination of each gather, and how many elements it kept.
template <typename T, typename Call>
__aicore__ inline void GatherRow(Bench& bench, GM_ADDR z, GM_ADDR counts, uint32_t row, Call call)
{
    LocalTensor<T> d = bench.Make<T>(kSize);
    LocalTensor<int32_t> count = bench.Filled<int32_t>(8, 0);
    uint64_t unfinished = 0;
    call(d, unfinished);
    SetFlag<HardEvent::V_S>(0);
    WaitFlag<HardEvent::V_S>(0);
    const int64_t kept = GetGatherMaskRemainCount();
    count.SetValue(0, static_cast<int32_t>(kept));
    count.SetValue(1, static_cast<int32_t>(unfinished));
    bench.Store(counts, count, 2, row * 2);
    bench.Store(z, d, static_cast<uint32_t>(kept), row * kSize);
}

template <typename T, typename U>
__aicore__ inline void GatherRows(GM_ADDR x, GM_ADDR pattern, GM_ADDR z, GM_ADDR counts)
{
    Bench bench;
    LocalTensor<T> a = bench.Load<T>(x, kSize);
    LocalTensor<U> bits = bench.Load<U>(pattern, kSize / 8);
    GatherRow<T>(bench, z, counts, 0, [&](LocalTensor<T>& d, uint64_t& n) {
        GatherMask(d, a, bits, true, kSize, GatherMaskParams(1, 1, 8, 8), n);
    });
    GatherRow<T>(bench, z, counts, 1, [&](LocalTensor<T>& d, uint64_t& n) {
        GatherMask(d, a, bits, true, 70, GatherMaskParams(1, 3, 10, 1), n);
    });
    GatherRow<T>(bench, z, counts, 2, [&](LocalTensor<T>& d, uint64_t& n) {
        GatherMask(d, a, bits, false, 0, GatherMaskParams(1, 2, 8, 0), n);
    });
    GatherRow<T>(bench, z, counts, 3, [&](LocalTensor<T>& d, uint64_t& n) {
        GatherMask(d, a, bits, false, 0, GatherMaskParams(2, 2, 3, 1), n);
    });
}

template <typename T>
__aicore__ inline void IndexRows(GM_ADDR z)
{
    Bench bench;
    const uint32_t counts[] = {5, 8, 60, 64, 130, 511};
    uint32_t row = 0;
    for (uint32_t count : counts) {
        LocalTensor<T> d = bench.Filled<T>(kSize, static_cast<T>(-9));
        CreateVecIndex(d, static_cast<T>(3), count);
        bench.Store(z, d, kSize, row++ * kSize);
    }
}

extern "C" {
__global__ __aicore__ void compare_half(GM_ADDR x, GM_ADDR z) { CompareRows<half>(x, z); }
__global__ __aicore__ void compare_float(GM_ADDR x, GM_ADDR z) { CompareRows<float>(x, z); }
__global__ __aicore__ void compare_int32(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<int32_t> a = bench.Load<int32_t>(x, kSize);
    LocalTensor<uint8_t> bits = bench.Make<uint8_t>(kSize / 8);
    CompareScalar(bits, a, 1, CMPMODE::EQ, kSize);
    bench.Store(z, bits, kSize / 8);
}
// strided sources, results without gaps
__global__ __aicore__ void compare_repeats(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<float> a = bench.Load<float>(x, kSize);
    LocalTensor<uint8_t> bits = bench.Make<uint8_t>(32);
    CompareScalar(bits, a, 1.0f, CMPMODE::GT, 64, 2, UnaryRepeatParams(1, 2, 8, 8));
    bench.Store(z, bits, 16);
}
// more than 255 repeats in one call
__global__ __aicore__ void compare_long(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<float> a = bench.Load<float>(x, 320 * 64);
    LocalTensor<uint8_t> bits = bench.Make<uint8_t>(320 * 8);
    CompareScalar(bits, a, 1.0f, CMPMODE::GT, 320 * 64);
    bench.Store(z, bits, 320 * 8);
}
__global__ __aicore__ void select_half(GM_ADDR x, GM_ADDR y, GM_ADDR m, GM_ADDR z) { SelectRows<half>(x, y, m, z); }
__global__ __aicore__ void select_float(GM_ADDR x, GM_ADDR y, GM_ADDR m, GM_ADDR z) { SelectRows<float>(x, y, m, z); }
__global__ __aicore__ void gather_float(GM_ADDR x, GM_ADDR p, GM_ADDR z, GM_ADDR n)
{
    GatherRows<float, uint32_t>(x, p, z, n);
}
__global__ __aicore__ void gather_half(GM_ADDR x, GM_ADDR p, GM_ADDR z, GM_ADDR n)
{
    GatherRows<half, uint16_t>(x, p, z, n);
}
__global__ __aicore__ void gather_in_place(GM_ADDR x, GM_ADDR z)
{
    Bench bench;
    LocalTensor<float> a = bench.Load<float>(x, 256);
    LocalTensor<uint32_t> odd = bench.Filled<uint32_t>(8, 0xaaaaaaaa);
    uint64_t unfinished = 0;
    GatherMask(a, a, odd, false, 0, GatherMaskParams(1, 4, 8, 0), unfinished);
    bench.Store(z, a, 128);
}
__global__ __aicore__ void gather_offsets(GM_ADDR x, GM_ADDR offsets, GM_ADDR z)
{
    Bench bench;
    LocalTensor<float> a = bench.Load<float>(x, kSize);
    LocalTensor<uint32_t> index = bench.Load<uint32_t>(offsets, 128);
    LocalTensor<float> d = bench.Filled<float>(128, -9.0f);
    Gather(d, a, index, 8, 100);
    bench.Store(z, d, 128);
}
__global__ __aicore__ void index_int16(GM_ADDR z) { IndexRows<int16_t>(z); }
__global__ __aicore__ void index_int32(GM_ADDR z) { IndexRows<int32_t>(z); }
__global__ __aicore__ void index_half(GM_ADDR z) { IndexRows<half>(z); }
__global__ __aicore__ void index_float(GM_ADDR z) { IndexRows<float>(z); }
}
