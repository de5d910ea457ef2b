// The operators on an NPU: they call aclnnTopThetaIncrementalAttention on torch_npu's current stream, through its task
// queue. Needs torch's headers and four functions that libtorch_npu exports; no header of torch_npu or CANN.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

struct aclTensor;
struct aclIntArray;
struct aclOpExecutor;

void* GetOpApiFuncAddr(const char* name);  // looks into libcust_opapi.so, then libopapi.so
void* GetAclStream();                      // of the current device; does not wait for the task queue
void RunAclCall(const std::string& name, const std::function<int()>& call);  // now, or in the task queue
namespace at_npu::native {
int64_t get_npu_format(const at::Tensor& tensor);
}

#include "adapter_arguments.h"  // which the build writes: OptionalTensor, Arguments, Plan and what passes them on

namespace {

constexpr char kOperator[] = "aclnnTopThetaIncrementalAttention";
constexpr char kPlan[] = "aclnnTopThetaIncrementalAttentionGetWorkspaceSize";
constexpr int kFormatNd = 2;
constexpr int kFloat32 = 0;  // aclDataType
constexpr int kInt32 = 3;
constexpr int64_t kBlockBytes = 32;  // the kernel copies rows of whole blocks
constexpr int64_t kPerChannel = 0;   // key_antiquant_mode, value_antiquant_mode

// A function of aclnn, looked up once.
template <typename Function>
Function* Find(const char* name)
{
    void* address = GetOpApiFuncAddr(name);
    TORCH_CHECK(address != nullptr, name, ": expected a function of libcust_opapi.so or libopapi.so, got none; ",
                "see: toptheta doctor");
    return reinterpret_cast<Function*>(address);
}

using CreateTensor = aclTensor*(const int64_t*, uint64_t, int, const int64_t*, int64_t, int, const int64_t*, uint64_t,
                                void*);
using CreateIntArray = aclIntArray*(const int64_t*, uint64_t);
using Tensor = const aclTensor*;
struct Functions {
    CreateTensor* createTensor = Find<CreateTensor>("aclCreateTensor");
    int (*destroyTensor)(const aclTensor*) = Find<int(const aclTensor*)>("aclDestroyTensor");
    CreateIntArray* createIntArray = Find<CreateIntArray>("aclCreateIntArray");
    int (*destroyIntArray)(const aclIntArray*) = Find<int(const aclIntArray*)>("aclDestroyIntArray");
    int (*destroyExecutor)(aclOpExecutor*) = Find<int(aclOpExecutor*)>("aclDestroyAclOpExecutor");
    Plan* plan = Find<Plan>(kPlan);
    int (*run)(void*, uint64_t, aclOpExecutor*, void*) = Find<int(void*, uint64_t, aclOpExecutor*, void*)>(kOperator);
};

const Functions& Aclnn()
{
    static const Functions functions;
    return functions;
}

std::string RecentError()
{
    void* runtime = dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD);
    void* address = runtime != nullptr ? dlsym(runtime, "aclGetRecentErrMsg") : nullptr;
    const char* text = address != nullptr ? reinterpret_cast<const char* (*)()>(address)() : nullptr;
    return text != nullptr ? text : "no message from CANN";
}

int AclType(const at::Tensor& tensor, const char* name)
{
    switch (tensor.scalar_type()) {
        case at::kFloat:
            return kFloat32;
        case at::kHalf:
            return 1;
        case at::kChar:
            return 2;
        case at::kInt:
            return kInt32;
        case at::kLong:
            return 9;
        case at::kBFloat16:
            return 27;
        default:
            TORCH_CHECK_TYPE(false, name, ": expected a dtype of the operator, got ", tensor.scalar_type());
    }
}

// The formats that hold elements in the order of their strides.
bool IsBaseFormat(int64_t format)
{
    constexpr std::array<int64_t, 7> base = {-1, 0, 1, kFormatNd, 27, 30, 47};
    return std::find(base.begin(), base.end(), format) != base.end();
}

void CheckPlace(const at::Tensor& tensor, const char* name, const at::Device& device)
{
    TORCH_CHECK_VALUE(tensor.device() == device, name, ": expected a tensor on ", device, ", like query, got ",
                      tensor.device(), "; move it with ", name, ".to(query.device)");
    const int64_t format = at_npu::native::get_npu_format(tensor);
    TORCH_CHECK_VALUE(IsBaseFormat(format), name, ": expected a tensor in a base format, got the private format ",
                      format, "; convert it with torch_npu.npu_format_cast(", name, ", 2)");
}

// What a launch refers to. aclnn keeps the pointers that its first phase was given until its second has returned.
class Resources {
public:
    Resources() = default;
    Resources(const Resources&) = delete;
    Resources& operator=(const Resources&) = delete;

    // The second phase ends the executor, but is never reached where the workspace finds no memory, or where torch_npu
    // drops what is queued behind an error.
    ~Resources()
    {
        if (executor_ != nullptr) {
            Aclnn().destroyExecutor(executor_);
        }
        Release();
    }

    aclOpExecutor** NewExecutor() { return &executor_; }
    aclOpExecutor* TakeExecutor() { return std::exchange(executor_, nullptr); }

    Tensor Add(const at::Tensor& tensor, const char* name)
    {
        int64_t span = 1;
        for (int64_t dim = 0; dim < tensor.dim(); dim++) {
            span += (tensor.size(dim) - 1) * tensor.stride(dim);
        }
        const int64_t elements = tensor.numel() == 0 ? 0 : span;
        return Keep(Aclnn().createTensor(tensor.sizes().data(), tensor.dim(), AclType(tensor, name),
                                         tensor.strides().data(), 0, kFormatNd, &elements, 1, tensor.data_ptr()));
    }

    // An input that aclnn reads in the order of its shape: made contiguous if it is not.
    Tensor AddInput(const OptionalTensor& tensor, const char* name, const at::Device& device)
    {
        if (!tensor.has_value() || !tensor->defined()) {
            return nullptr;
        }
        CheckPlace(*tensor, name, device);
        temporaries_.push_back(tensor->contiguous());
        return Add(temporaries_.back(), name);
    }

    // Scales of an int8 cache, whose strides the kernel gets.
    Tensor AddScale(const OptionalTensor& tensor, const char* name, const at::Device& device)
    {
        if (!tensor.has_value()) {
            return nullptr;
        }
        CheckPlace(*tensor, name, device);
        temporaries_.push_back(*tensor);
        return Add(*tensor, name);
    }

    // An output that was not asked for is an empty tensor.
    Tensor AddOutput(const at::Tensor& tensor, int type)
    {
        if (tensor.defined()) {
            return Add(tensor, "output");
        }
        constexpr int64_t size = 0;
        constexpr int64_t stride = 1;
        return Keep(Aclnn().createTensor(&size, 1, type, &stride, 0, kFormatNd, &size, 1, nullptr));
    }

    const aclIntArray* Add(const std::array<int64_t, 3>& values)
    {
        arrays_.push_back(Aclnn().createIntArray(values.data(), values.size()));
        TORCH_CHECK(arrays_.back() != nullptr, "aclCreateIntArray: ", RecentError());
        return arrays_.back();
    }

    char* Add(c10::string_view text)
    {
        std::string& kept = texts_.at(textCount_++);
        kept.assign(text.data(), text.size());
        return kept.data();
    }

    void Release() noexcept
    {
        for (const aclTensor* tensor : tensors_) {
            Aclnn().destroyTensor(tensor);
        }
        for (const aclIntArray* array : arrays_) {
            Aclnn().destroyIntArray(array);
        }
        tensors_.clear();
        arrays_.clear();
        for (std::string& text : texts_) {
            text.clear();
        }
    }

    // Freed memory is reused in stream order, so the launch need not hold on to them.
    void ReleaseTemporaries() { temporaries_.clear(); }

private:
    Tensor Keep(Tensor tensor)
    {
        TORCH_CHECK(tensor != nullptr, "aclCreateTensor: ", RecentError());
        tensors_.push_back(tensor);
        return tensor;
    }

    aclOpExecutor* executor_ = nullptr;
    // In place: what another thread frees makes the next allocation slow.
    c10::SmallVector<Tensor, 22> tensors_;
    c10::SmallVector<const aclIntArray*, 4> arrays_;
    std::array<std::string, 4> texts_;
    size_t textCount_ = 0;
    c10::SmallVector<at::Tensor, 8> temporaries_;
};

bool IsPaged(const Arguments& a) { return a.block_table.has_value(); }

int64_t BlockSize(const Arguments& a) { return !IsPaged(a) ? 0 : a.key.dim() == 3 ? a.key.size(1) : a.key.size(2); }

// Outputs that were not asked for stay undefined.
struct Outputs {
    at::Tensor out;
    at::Tensor lse;
    at::Tensor kept;
    at::Tensor valueRows;
    at::Tensor partOut;
    at::Tensor partMaximum;
    at::Tensor partKeptMass;
    at::Tensor partDiscardedMass;
};

// Strides of sequence or block, KV head and row: a strided cache is read in place.
std::array<int64_t, 3> CacheStrides(const Arguments& a, const at::Tensor& cache, const char* name)
{
    CheckPlace(cache, name, a.query.device());
    TORCH_CHECK_VALUE(cache.dim() == 3 || cache.dim() == 4, name, ": expected 3 or 4 dimensions, got ", cache.sizes());
    TORCH_CHECK_VALUE(cache.stride(-1) == 1, name, ": expected a last stride of 1, got ", cache.strides(), "; pass ",
                      name, ".contiguous()");
    const int64_t step = kBlockBytes / cache.element_size();
    const bool rowsFirst = cache.dim() == 3 || (a.input_layout == "BSND" && !IsPaged(a));
    for (int64_t dim = 0; dim < cache.dim() - 1; dim++) {
        TORCH_CHECK_VALUE(cache.size(dim) <= 1 || cache.stride(dim) % step == 0, name,
                          ": expected strides that are multiples of ", step, " elements, got ", cache.strides(),
                          "; pass ", name, ".contiguous()");
    }
    if (cache.dim() == 4) {
        return {cache.stride(0), cache.stride(rowsFirst ? 2 : 1), cache.stride(rowsFirst ? 1 : 2)};
    }
    TORCH_CHECK_VALUE(a.num_key_value_heads > 0, "num_key_value_heads: expected at least 1, got ",
                      a.num_key_value_heads);
    return {cache.stride(0), cache.size(2) / a.num_key_value_heads, cache.stride(1)};
}

// The kernel's scales are float32. One number for each channel may be cast in every step; one for each row may not.
OptionalTensor KernelScale(const Arguments& a, const OptionalTensor& scale, int64_t mode, const char* name)
{
    if (!scale.has_value()) {
        return scale;
    }
    if (mode != kPerChannel) {
        TORCH_CHECK_NOT_IMPLEMENTED(scale->scalar_type() == at::kFloat, name,
                                    ": expected float32 scales of tokens on an NPU, got ", scale->scalar_type(),
                                    "; keep them in float32");
        TORCH_CHECK_VALUE(scale->dim() == 3, name, ": expected 3 dimensions, got ", scale->sizes());
        return scale;
    }
    const int64_t heads = a.num_key_value_heads;
    const int64_t width = a.query.size(-1);
    const int64_t headDim = a.input_layout == "BSH" ? width / std::max<int64_t>(a.num_heads, 1) : width;
    const bool flat = scale->dim() == 1 && scale->numel() == heads * headDim;
    const at::Tensor channels = flat ? scale->view({heads, headDim}) : scale->dim() == 3 ? scale->select(1, 0) : *scale;
    return channels.expand({heads, headDim}).to(at::kFloat).contiguous();
}

// Strides of sequence or block, KV head and row of scales per token and head, which are read in place.
std::array<int64_t, 3> ScaleStrides(const OptionalTensor& scale, int64_t mode)
{
    if (!scale.has_value() || mode == kPerChannel) {
        return {};
    }
    return {scale->stride(0), scale->stride(1), scale->stride(2)};
}

// The operator's definition asks for one integer type.
void UnifyIntegers(Arguments& a)
{
    const OptionalTensor& like = a.actual_seq_lengths.has_value() ? a.actual_seq_lengths : a.key_start;
    for (OptionalTensor* tensor : {&a.key_start, &a.actual_query_lengths}) {
        if (tensor->has_value() && like.has_value()) {
            *tensor = (*tensor)->to(like->scalar_type());
        }
    }
}

struct Launch {
    std::shared_ptr<Resources> resources = std::make_shared<Resources>();
    uint64_t workspaceBytes = 0;
};

// What the first phase of aclnn takes for an argument.
struct ForPlan {
    Resources& resources;
    at::Device device;

    Tensor Input(const OptionalTensor& tensor, const char* name) { return resources.AddInput(tensor, name, device); }
    Tensor Cache(const at::Tensor& tensor, const char* name) { return resources.Add(tensor, name); }
    Tensor Scale(const OptionalTensor& tensor, const char* name) { return resources.AddScale(tensor, name, device); }
    char* Text(c10::string_view text) { return resources.Add(text); }
};

Launch PlanLaunch(Arguments a, const Outputs& out, bool withStats, bool partial)
{
    Launch launch;
    Resources& r = *launch.resources;
    ForPlan forPlan = {r, a.query.device()};
    const std::array<int64_t, 3> keyStrides = CacheStrides(a, a.key, "key");
    const std::array<int64_t, 3> valueStrides = CacheStrides(a, a.value, "value");
    UnifyIntegers(a);
    a.key_antiquant_scale = KernelScale(a, a.key_antiquant_scale, a.key_antiquant_mode, "key_antiquant_scale");
    a.value_antiquant_scale = KernelScale(a, a.value_antiquant_scale, a.value_antiquant_mode, "value_antiquant_scale");
    const std::array<int64_t, 3> keyScales = ScaleStrides(a.key_antiquant_scale, a.key_antiquant_mode);
    const std::array<int64_t, 3> valueScales = ScaleStrides(a.value_antiquant_scale, a.value_antiquant_mode);
    const int status =
        CallPlan(Aclnn().plan, a, forPlan, BlockSize(a), r.Add(keyStrides), r.Add(valueStrides), r.Add(keyScales),
                 r.Add(valueScales), withStats, partial, r.AddOutput(out.out, AclType(a.query, "query")),
                 r.AddOutput(out.lse, kFloat32), r.AddOutput(out.kept, kInt32), r.AddOutput(out.valueRows, kInt32),
                 r.AddOutput(out.partOut, kFloat32), r.AddOutput(out.partMaximum, kFloat32),
                 r.AddOutput(out.partKeptMass, kFloat32), r.AddOutput(out.partDiscardedMass, kFloat32),
                 &launch.workspaceBytes, r.NewExecutor());
    if (status != 0) {
        r.TakeExecutor();  // is not ours: a first phase that fails ends what it began
    }
    TORCH_CHECK(status == 0, kPlan, " returned ", status, ": ", RecentError());
    return launch;
}

void Run(const Arguments& arguments, const Outputs& outputs, bool withStats, bool partial)
{
    const c10::DeviceGuard guard(arguments.query.device());
    const Launch launch = PlanLaunch(arguments, outputs, withStats, partial);
    at::Tensor workspace;
    if (launch.workspaceBytes > 0) {
        workspace =
            at::empty({static_cast<int64_t>(launch.workspaceBytes)}, arguments.query.options().dtype(at::kByte));
    }
    void* const memory = workspace.defined() ? workspace.data_ptr() : nullptr;
    void* const stream = GetAclStream();
    RunAclCall(kOperator, [launch, memory, stream]() -> int {
        const int status = Aclnn().run(memory, launch.workspaceBytes, launch.resources->TakeExecutor(), stream);
        launch.resources->Release();
        return status;
    });
    launch.resources->ReleaseTemporaries();
}

at::Tensor NewOutput(const at::Tensor& query) { return at::empty(query.sizes(), query.options()); }

// A number for each query row: [B, Hq], with several tokens [B, Hq, Sq].
at::Tensor NewPerRow(const Arguments& a, at::ScalarType type)
{
    const at::Tensor& query = a.query;
    const int64_t tokens = query.dim() < 3 ? 1 : query.size(a.input_layout == "BNSD" ? 2 : 1);
    c10::SmallVector<int64_t, 3> sizes = {query.size(0), a.num_heads};
    if (tokens != 1) {
        sizes.push_back(tokens);
    }
    return at::empty(sizes, query.options().dtype(type));
}

at::Tensor Attention(const Arguments& a)
{
    Outputs outputs;
    outputs.out = NewOutput(a.query);
    Run(a, outputs, false, false);
    return outputs.out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> AttentionWithStats(const Arguments& a)
{
    Outputs outputs;
    outputs.out = NewOutput(a.query);
    outputs.lse = NewPerRow(a, at::kFloat);
    outputs.kept = NewPerRow(a, at::kInt);
    outputs.valueRows = at::empty({a.query.size(0), a.num_key_value_heads}, a.query.options().dtype(at::kInt));
    Run(a, outputs, true, false);
    return {outputs.out, outputs.lse, outputs.kept, outputs.valueRows};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> AttentionPartial(const Arguments& a)
{
    Outputs outputs;
    outputs.partOut = at::empty(a.query.sizes(), a.query.options().dtype(at::kFloat));
    outputs.partMaximum = NewPerRow(a, at::kFloat);
    outputs.partKeptMass = NewPerRow(a, at::kFloat);
    outputs.partDiscardedMass = NewPerRow(a, at::kFloat);
    outputs.kept = NewPerRow(a, at::kInt);
    Run(a, outputs, false, true);
    return {outputs.partOut, outputs.partMaximum, outputs.partKeptMass, outputs.partDiscardedMass, outputs.kept};
}

}  // namespace

TORCH_LIBRARY_IMPL(toptheta_npu, PrivateUse1, library)
{
    library.impl("incremental_attention", &incremental_attention<&Attention>);
    library.impl("incremental_attention_with_stats", &incremental_attention_with_stats<&AttentionWithStats>);
    library.impl("incremental_attention_partial", &incremental_attention_partial<&AttentionPartial>);
}
