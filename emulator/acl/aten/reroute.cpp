// Sends every aten operator that torch_npu implements for the NPU to the CPU, except those that only allocate, alias
// or copy: these run for real on the emulated device. Loaded after torch_npu has registered its kernels.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/CPUFallback.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

using c10::DispatchKey;

const std::set<std::string> kStayOnDevice = {"empty",
                                             "empty_strided",
                                             "empty_like",
                                             "new_empty",
                                             "new_empty_strided",
                                             "resize_",
                                             "resize_as_",
                                             "_resize_output_",
                                             "set_",
                                             "copy_",
                                             "_copy_from",
                                             "_copy_from_and_resize",
                                             "_local_scalar_dense",
                                             "clone",
                                             "contiguous",
                                             "record_stream",
                                             "is_pinned",
                                             "pin_memory",
                                             "_pin_memory",
                                             "_to_copy",
                                             "to",
                                             "is_set_to",
                                             "unsafe_split",
                                             "unsafe_split_with_sizes"};

// A CPU generator that goes on where the NPU's stands, so that seeds still decide what is drawn.
at::Generator OnCpu(at::Generator generator)
{
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ull;  // spreads neighbouring offsets over the seeds
    constexpr uint64_t kStep = 4;                     // offsets of the NPU's generators are multiples of it
    const uint64_t seed = generator.current_seed() * kOdd + generator.get_offset();
    generator.set_offset(generator.get_offset() + kStep);
    return at::detail::createCPUGenerator(seed);
}

void RunOnCpu(const c10::OperatorHandle& op, torch::jit::Stack* stack)
{
    for (c10::IValue& value : *stack) {
        if (!value.isGenerator()) continue;
        const at::Generator generator = value.toGenerator();
        if (generator.defined() && generator.device().type() != at::kCPU) value = OnCpu(generator);
    }
    at::native::cpu_fallback(op, stack, /*error_on_views=*/false);
}

// The kernel that PyTorch itself would use: a composition of other operators, or its derivative formula.
class NativeKernel : public c10::OperatorKernel {
public:
    explicit NativeKernel(c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack)
    {
        kernel_.callBoxed(op, keys, stack);
    }

private:
    c10::SafeKernelFunction kernel_;
};

c10::KernelFunction Native(const c10::OperatorHandle& op, DispatchKey key)
{
    return c10::KernelFunction::makeFromBoxedFunctor(
        std::make_unique<NativeKernel>(op.getComputedKernelForDispatchKey(key)));
}

bool ReturnsView(const c10::OperatorHandle& op)
{
    for (const c10::Argument& result : op.schema().returns()) {
        if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
    }
    return op.hasTag(at::Tag::inplace_view);
}

class Reroute {
public:
    int Install()
    {
        for (const c10::OperatorName& name : dispatcher_.getAllOpNames()) {
            const bool aten = name.name.rfind("aten::", 0) == 0;
            if (!aten || kStayOnDevice.count(name.name.substr(6)) != 0) continue;
            const auto op = dispatcher_.findOp(name);
            if (op && op->hasSchema() && !ReturnsView(*op)) Replace(name, *op);
        }
        return static_cast<int>(handles_.size());
    }

private:
    void Replace(const c10::OperatorName& name, const c10::OperatorHandle& op)
    {
        if (op.hasKernelForDispatchKey(DispatchKey::AutogradPrivateUse1) &&
            op.hasComputedKernelForDispatchKey(DispatchKey::AutogradCPU)) {
            Register(name, DispatchKey::AutogradPrivateUse1, Native(op, DispatchKey::AutogradCPU));
        }
        if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) {
            const bool composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
            Register(
                name, DispatchKey::PrivateUse1,
                composite ? Native(op, DispatchKey::CPU) : c10::KernelFunction::makeFromBoxedFunction<&RunOnCpu>());
        }
    }

    void Register(const c10::OperatorName& name, DispatchKey key, c10::KernelFunction kernel)
    {
        handles_.push_back(
            dispatcher_.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, "emulated NPU"));
    }

    c10::Dispatcher& dispatcher_ = c10::Dispatcher::singleton();
    std::vector<c10::RegistrationHandleRAII> handles_;
};

}  // namespace

// Returns how many kernels were replaced. Further calls do nothing and return the same number.
extern "C" int acl_emulator_reroute_aten()
{
    static auto* reroute = new Reroute;  // never destroyed: the dispatcher may be gone first
    static const int count = reroute->Install();
    return count;
}
