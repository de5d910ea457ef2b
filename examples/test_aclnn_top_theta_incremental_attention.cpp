// Calls the operator from C++, without PyTorch: one decode step over a cache in device memory, compared with the same
// step in double precision on the host. docs/aclnnTopThetaIncrementalAttention.md says how to build it.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "acl/acl.h"
#include "aclnn_top_theta_incremental_attention.h"

namespace {

constexpr int64_t kBatch = 2, kHeads = 8, kKeyValueHeads = 2, kKeys = 1024, kHeadDim = 128;
constexpr float kThreshold = 1.5F;  // of the scaled scores, which have a deviation of 1 here: one in fifteen passes
const double kScale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));

void Check(int status, const char* call)
{
    if (status != 0) {
        const char* message = aclGetRecentErrMsg();
        const int name = static_cast<int>(std::strcspn(call, "("));
        std::fprintf(stderr, "%.*s returned %d: %s\n", name, call, status, message == nullptr ? "no message" : message);
        std::exit(1);
    }
}
#define CHECKED(call) Check(call, #call)

uint16_t ToBfloat16(float number)
{
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to the nearest, ties to even
}

float ToFloat(uint16_t stored)
{
    const uint32_t bits = static_cast<uint32_t>(stored) << 16;
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

std::vector<uint16_t> RandomNumbers(int64_t count, std::mt19937& generator)
{
    std::normal_distribution<float> normal;
    std::vector<uint16_t> numbers(static_cast<size_t>(count));
    for (uint16_t& number : numbers) {
        number = ToBfloat16(normal(generator));
    }
    return numbers;
}

// A contiguous tensor in device memory. An empty one takes the place of an output that a call does not write.
class DeviceTensor {
public:
    DeviceTensor(const std::vector<int64_t>& shape, aclDataType type)
        : bytes_(aclDataTypeSize(type) * std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>()))
    {
        if (bytes_ > 0) {
            CHECKED(aclrtMalloc(&data_, bytes_, ACL_MEM_MALLOC_HUGE_FIRST));
        }
        std::vector<int64_t> strides(shape.size(), 1);
        for (size_t axis = shape.size() - 1; axis > 0; axis--) {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        tensor_ = aclCreateTensor(shape.data(), shape.size(), type, strides.data(), 0, ACL_FORMAT_ND, shape.data(),
                                  shape.size(), data_);
    }
    template <class Number>
    DeviceTensor(const std::vector<int64_t>& shape, aclDataType type, const std::vector<Number>& numbers)
        : DeviceTensor(shape, type)
    {
        CHECKED(aclrtMemcpy(data_, bytes_, numbers.data(), bytes_, ACL_MEMCPY_HOST_TO_DEVICE));
    }
    DeviceTensor(const DeviceTensor&) = delete;
    DeviceTensor& operator=(const DeviceTensor&) = delete;
    ~DeviceTensor()
    {
        aclDestroyTensor(tensor_);
        if (data_ != nullptr) {
            aclrtFree(data_);
        }
    }

    const aclTensor* get() const { return tensor_; }
    template <class Number>
    std::vector<Number> Read() const
    {
        std::vector<Number> numbers(bytes_ / sizeof(Number));
        CHECKED(aclrtMemcpy(numbers.data(), bytes_, data_, bytes_, ACL_MEMCPY_DEVICE_TO_HOST));
        return numbers;
    }

private:
    size_t bytes_;
    void* data_ = nullptr;
    aclTensor* tensor_ = nullptr;
};

struct Step {
    std::vector<uint16_t> query, key, value;  // BNSD
    std::vector<int32_t> lengths;
    std::vector<float> means;  // of the V rows of a sequence and KV head, for the compensation
};

Step MakeStep()
{
    std::mt19937 generator(0);
    const int64_t cache = kBatch * kKeyValueHeads * kKeys * kHeadDim;
    Step step = {RandomNumbers(kBatch * kHeads * kHeadDim, generator),
                 RandomNumbers(cache, generator),
                 RandomNumbers(cache, generator),
                 {kKeys, 700},
                 {}};
    for (int64_t pair = 0; pair < kBatch * kKeyValueHeads; pair++) {
        const int32_t length = step.lengths[static_cast<size_t>(pair / kKeyValueHeads)];
        for (int64_t i = 0; i < kHeadDim; i++) {
            float sum = 0.0F;
            for (int64_t row = 0; row < length; row++) {
                sum += ToFloat(step.value[static_cast<size_t>((pair * kKeys + row) * kHeadDim + i)]);
            }
            step.means.push_back(sum / static_cast<float>(length));
        }
    }
    return step;
}

struct Result {
    std::vector<uint16_t> out;
    std::vector<int32_t> kept;
};

Result RunOnDevice(const Step& step, aclrtStream stream)
{
    const std::vector<int64_t> rows = {kBatch, kHeads}, queries = {kBatch, kHeads, 1, kHeadDim};
    const std::vector<int64_t> cache = {kBatch, kKeyValueHeads, kKeys, kHeadDim};
    const DeviceTensor query(queries, ACL_BF16, step.query), key(cache, ACL_BF16, step.key);
    const DeviceTensor value(cache, ACL_BF16, step.value), lengths({kBatch}, ACL_INT32, step.lengths);
    const DeviceTensor threshold({kHeads}, ACL_FLOAT, std::vector<float>(kHeads, kThreshold));
    const DeviceTensor means({kBatch, kKeyValueHeads, kHeadDim}, ACL_FLOAT, step.means);
    const DeviceTensor out(queries, ACL_BF16), lse(rows, ACL_FLOAT), kept(rows, ACL_INT32);
    const DeviceTensor valueRows({kBatch, kKeyValueHeads}, ACL_INT32);
    const DeviceTensor partOut({0}, ACL_FLOAT), partMaximum({0}, ACL_FLOAT), partKept({0}, ACL_FLOAT);
    const DeviceTensor partDiscarded({0}, ACL_FLOAT);
    // strings have to live until the second phase has returned
    char layout[] = "BNSD", placement[] = "pre_softmax", sdc[] = "exact", path[] = "auto";

    uint64_t workspaceSize = 0;
    aclOpExecutor* executor = nullptr;
    CHECKED(aclnnTopThetaIncrementalAttentionGetWorkspaceSize(
        query.get(), key.get(), value.get(), threshold.get(), lengths.get(), nullptr, nullptr, nullptr, nullptr,
        nullptr, nullptr, means.get(), nullptr, nullptr, kHeads, kKeyValueHeads, kScale, layout, 0, 0, placement, sdc,
        0.05, path, 0, nullptr, nullptr, nullptr, nullptr, true, false, out.get(), lse.get(), kept.get(),
        valueRows.get(), partOut.get(), partMaximum.get(), partKept.get(), partDiscarded.get(), &workspaceSize,
        &executor));
    void* workspace = nullptr;
    if (workspaceSize > 0) {
        CHECKED(aclrtMalloc(&workspace, workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST));
    }
    CHECKED(aclnnTopThetaIncrementalAttention(workspace, workspaceSize, executor, stream));
    CHECKED(aclrtSynchronizeStream(stream));
    if (workspace != nullptr) {
        CHECKED(aclrtFree(workspace));
    }
    return {out.Read<uint16_t>(), kept.Read<int32_t>()};
}

// One row in double precision: softmax over all keys, V rows of those above the threshold, the mean for all others.
std::vector<double> ComputeRow(const Step& step, int64_t row)
{
    const int64_t pair = row / (kHeads / kKeyValueHeads);
    const int64_t length = step.lengths[static_cast<size_t>(pair / kKeyValueHeads)];
    double kept = 0.0, discarded = 0.0;
    std::vector<double> out(kHeadDim, 0.0);
    for (int64_t key = 0; key < length; key++) {
        const int64_t first = (pair * kKeys + key) * kHeadDim;
        double score = 0.0;
        for (int64_t i = 0; i < kHeadDim; i++) {
            score += static_cast<double>(ToFloat(step.query[static_cast<size_t>(row * kHeadDim + i)])) *
                     ToFloat(step.key[static_cast<size_t>(first + i)]);
        }
        const double weight = std::exp(score * kScale);
        (score * kScale > kThreshold ? kept : discarded) += weight;
        for (int64_t i = 0; i < kHeadDim && score * kScale > kThreshold; i++) {
            out[static_cast<size_t>(i)] += weight * ToFloat(step.value[static_cast<size_t>(first + i)]);
        }
    }
    for (int64_t i = 0; i < kHeadDim; i++) {
        const double mean = step.means[static_cast<size_t>(pair * kHeadDim + i)];
        out[static_cast<size_t>(i)] = (out[static_cast<size_t>(i)] + discarded * mean) / (kept + discarded);
    }
    return out;
}

}  // namespace

int main()
{
    CHECKED(aclInit(nullptr));
    CHECKED(aclrtSetDevice(0));
    aclrtStream stream = nullptr;
    CHECKED(aclrtCreateStream(&stream));
    const Step step = MakeStep();
    const Result result = RunOnDevice(step, stream);
    CHECKED(aclrtDestroyStream(stream));
    CHECKED(aclrtResetDevice(0));
    CHECKED(aclFinalize());

    double largest = 0.0;
    for (int64_t row = 0; row < kBatch * kHeads; row++) {
        const std::vector<double> expected = ComputeRow(step, row);
        for (int64_t i = 0; i < kHeadDim; i++) {
            const double found = ToFloat(result.out[static_cast<size_t>(row * kHeadDim + i)]);
            largest = std::fmax(largest, std::fabs(found - expected[static_cast<size_t>(i)]));
        }
    }
    const int64_t kept = std::accumulate(result.kept.begin(), result.kept.end(), int64_t{0});
    std::printf("%lld of %lld scores kept; largest difference to the host: %.1e\n", static_cast<long long>(kept),
                static_cast<long long>(kHeads * (step.lengths[0] + step.lengths[1])), largest);
    return largest < 4e-3 ? 0 : 1;  // outputs are below 1 and have 8 bits
}
