// The operator called the way torch_npu documents, by its macro: what the adapter's cost is compared with.
// Without device guard and checks of the caches, and outputs that are not asked for are left out: the least it can do.
#include <chrono>
#include <string>

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "op_plugin/include/npu_cpp_extension.h"

namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& threshold, const OptionalTensor& lengths, const OptionalTensor& start,
                     const OptionalTensor& table, const OptionalTensor& keyScale, const OptionalTensor& valueScale,
                     const OptionalTensor& queryLengths, const OptionalTensor& mass, const OptionalTensor& mean,
                     const OptionalTensor& sink, int64_t heads, int64_t keyValueHeads, double scale,
                     c10::string_view layout, int64_t keyMode, int64_t valueMode, c10::string_view placement,
                     c10::string_view sdc, double sdcGamma, c10::string_view path)
{
    at::Tensor out = at::empty_like(query);
    const at::Tensor none;
    const OptionalTensor rowLse;
    const std::string texts[] = {std::string(layout), std::string(placement), std::string(sdc), std::string(path)};
    char* layoutText = const_cast<char*>(texts[0].c_str());
    char* placementText = const_cast<char*>(texts[1].c_str());
    char* sdcText = const_cast<char*>(texts[2].c_str());
    char* pathText = const_cast<char*>(texts[3].c_str());
    const int64_t blockSize = 0;
    const bool no = false;
    const at::IntArrayRef keyStrides = key.strides().slice(0, 3);
    const at::IntArrayRef valueStrides = value.strides().slice(0, 3);
    const int64_t zeros[3] = {};
    const at::IntArrayRef noStrides(zeros, 3);
    EXEC_NPU_CMD_EXT(aclnnTopThetaIncrementalAttention, query, key, value, threshold, lengths, start, table, keyScale,
                     valueScale, queryLengths, mass, mean, sink, rowLse, heads, keyValueHeads, scale, layoutText,
                     keyMode, valueMode, placementText, sdcText, sdcGamma, pathText, blockSize, keyStrides,
                     valueStrides, noStrides, noStrides, no, no, out, none, none, none, none, none, none, none);
    return out;
}

// torch_npu's task queue alone: nothing is described, planned or launched. Between two entries the host has other work
// for as long as `microseconds`, as with any operator, so that the thread behind the queue has gone to sleep.
at::Tensor QueueAlone(const at::Tensor& query, double microseconds)
{
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double, std::micro>(microseconds);
    at::Tensor out = at::empty_like(query);
    while (Clock::now() < end) {
    }
    RunAclCall("nothing", []() -> int { return 0; });
    return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(toptheta_npu_macro, PrivateUse1, library)
{
    library.impl("incremental_attention", &Attention);
    library.impl("queue_alone", &QueueAlone);
}
