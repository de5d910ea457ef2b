// The generated aclnn interface: size of the workspace, return codes, and a call in both phases.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "aclnn_top_theta_incremental_attention.h"

namespace {

using Sizes = std::vector<int64_t>;

constexpr int kSuccess = 0, kNullPointer = 161001;
constexpr int64_t kBatch = 2, kHeads = 4, kRows = 256, kHeadDim = 64;
constexpr uint64_t kSystemWorkspace = 16 << 20;  // CANN's own part
constexpr uint16_t kOne = 0x3C00;                // 1.0 in float16

// A contiguous tensor in device memory.
class DeviceTensor {
public:
    DeviceTensor(const Sizes& sizes, aclDataType type)
        : bytes_(aclDataTypeSize(type) * std::accumulate(sizes.begin(), sizes.end(), size_t{1}, std::multiplies<>()))
    {
        if (bytes_ > 0) {
            EXPECT_EQ(aclrtMalloc(&data_, bytes_, ACL_MEM_MALLOC_HUGE_FIRST), kSuccess);
            EXPECT_EQ(aclrtMemset(data_, bytes_, 0, bytes_), kSuccess);
        }
        Sizes strides(sizes.size(), 1);
        for (size_t axis = sizes.size() - 1; axis > 0; axis--) {
            strides[axis - 1] = strides[axis] * sizes[axis];
        }
        tensor_ = aclCreateTensor(sizes.data(), sizes.size(), type, strides.data(), 0, ACL_FORMAT_ND, sizes.data(),
                                  sizes.size(), data_);
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

    const aclTensor* Get() const { return tensor_; }

    template <typename T>
    void Write(const std::vector<T>& numbers)
    {
        EXPECT_EQ(aclrtMemcpy(data_, bytes_, numbers.data(), bytes_, ACL_MEMCPY_HOST_TO_DEVICE), kSuccess);
    }

    template <typename T>
    std::vector<T> Read() const
    {
        std::vector<T> numbers(bytes_ / sizeof(T));
        EXPECT_EQ(aclrtMemcpy(numbers.data(), bytes_, data_, bytes_, ACL_MEMCPY_DEVICE_TO_HOST), kSuccess);
        return numbers;
    }

private:
    size_t bytes_;
    void* data_ = nullptr;
    aclTensor* tensor_ = nullptr;
};

// A valid call; a test puts other pointers in place of these.
struct Call {
    explicit Call(int64_t batch = kBatch)
        : queryData({batch, kHeads, 1, kHeadDim}, ACL_FLOAT16),
          keyData({batch, kHeads, kRows, kHeadDim}, ACL_FLOAT16),
          valueData({batch, kHeads, kRows, kHeadDim}, ACL_FLOAT16),
          thresholdData({kHeads}, ACL_FLOAT),
          lengthsData({batch}, ACL_INT32),
          outData({batch, kHeads, 1, kHeadDim}, ACL_FLOAT16),
          noFloats({0}, ACL_FLOAT),
          noIntegers({0}, ACL_INT32)
    {}

    aclnnStatus Plan()
    {
        return aclnnTopThetaIncrementalAttentionGetWorkspaceSize(
            query, key, value, threshold, lengths, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
            nullptr, nullptr, kHeads, kHeads, 0.125, layout, 0, 0, placement, sdc, 0.05, path, 0, nullptr, nullptr,
            nullptr, nullptr, false, false, out, noFloats.Get(), noIntegers.Get(), noIntegers.Get(), noFloats.Get(),
            noFloats.Get(), noFloats.Get(), noFloats.Get(), size, planned);
    }

    DeviceTensor queryData, keyData, valueData, thresholdData, lengthsData, outData, noFloats, noIntegers;
    const aclTensor* query = queryData.Get();
    const aclTensor* key = keyData.Get();
    const aclTensor* value = valueData.Get();
    const aclTensor* threshold = thresholdData.Get();
    const aclTensor* lengths = nullptr;
    const aclTensor* out = outData.Get();
    char layout[5] = "BNSD", placement[12] = "pre_softmax", sdc[6] = "exact", path[5] = "auto";
    uint64_t workspaceSize = 0;
    aclOpExecutor* executor = nullptr;
    uint64_t* size = &workspaceSize;
    aclOpExecutor** planned = &executor;
};

class AclnnTopThetaIncrementalAttention : public testing::Test {
protected:
    static void SetUpTestSuite()
    {
        ASSERT_EQ(aclInit(nullptr), kSuccess);
        ASSERT_EQ(aclrtSetDevice(0), kSuccess);
    }
    static void TearDownTestSuite()
    {
        aclrtResetDevice(0);
        aclFinalize();
    }
};

TEST_F(AclnnTopThetaIncrementalAttention, SizeOfTheWorkspace)
{
    Call whole, split;
    ASSERT_EQ(whole.Plan(), kSuccess) << aclGetRecentErrMsg();
    EXPECT_EQ(whole.workspaceSize, kSystemWorkspace) << "no core leaves a part for another";
    split.lengths = split.lengthsData.Get();
    ASSERT_EQ(split.Plan(), kSuccess) << aclGetRecentErrMsg();
    EXPECT_GT(split.workspaceSize, kSystemWorkspace) << "cores may share a sequence";
    for (const Call* call : {&whole, &split}) {
        EXPECT_NE(call->executor, nullptr);
        EXPECT_EQ(aclDestroyAclOpExecutor(call->executor), kSuccess);
    }
}

TEST_F(AclnnTopThetaIncrementalAttention, BothPhases)
{
    Call call;
    call.valueData.Write(std::vector<uint16_t>(kBatch * kHeads * kRows * kHeadDim, kOne));
    call.thresholdData.Write(std::vector<float>(kHeads, -1.0F));  // all scores are 0, so every key passes
    ASSERT_EQ(call.Plan(), kSuccess) << aclGetRecentErrMsg();
    void* workspace = nullptr;
    ASSERT_EQ(aclrtMalloc(&workspace, call.workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST), kSuccess);
    aclrtStream stream = nullptr;
    ASSERT_EQ(aclrtCreateStream(&stream), kSuccess);
    EXPECT_EQ(aclnnTopThetaIncrementalAttention(workspace, call.workspaceSize, call.executor, stream), kSuccess)
        << aclGetRecentErrMsg();
    EXPECT_EQ(aclrtSynchronizeStream(stream), kSuccess);
    EXPECT_EQ(call.outData.Read<uint16_t>(), std::vector<uint16_t>(kBatch * kHeads * kHeadDim, kOne));
    aclrtDestroyStream(stream);
    aclrtFree(workspace);
}

TEST_F(AclnnTopThetaIncrementalAttention, NullPointers)
{
    const std::pair<const char*, std::function<void(Call&)>> cases[] = {
        {"query", [](Call& call) { call.query = nullptr; }},
        {"key", [](Call& call) { call.key = nullptr; }},
        {"value", [](Call& call) { call.value = nullptr; }},
        {"threshold", [](Call& call) { call.threshold = nullptr; }},
        {"attention_out", [](Call& call) { call.out = nullptr; }},
        {"workspaceSize", [](Call& call) { call.size = nullptr; }},
        {"executor", [](Call& call) { call.planned = nullptr; }},
    };
    for (const auto& [name, remove] : cases) {
        Call call;
        remove(call);
        EXPECT_EQ(call.Plan(), kNullPointer) << name;
        EXPECT_NE(std::string(aclGetRecentErrMsg()).find(name), std::string::npos) << aclGetRecentErrMsg();
    }
    EXPECT_EQ(aclnnTopThetaIncrementalAttention(nullptr, 0, nullptr, nullptr), kNullPointer);
}

TEST_F(AclnnTopThetaIncrementalAttention, EmptyBatch)
{
    Call call(0);
    EXPECT_NE(call.Plan(), kSuccess);
    EXPECT_NE(std::string(aclGetRecentErrMsg()).find("query: expected at least one sequence, got [0, 4, 1, 64]"),
              std::string::npos)
        << aclGetRecentErrMsg();
}

}  // namespace
