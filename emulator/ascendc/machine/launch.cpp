#include "launch.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core_impl.h"

namespace ascendc_host {

namespace {

using Pointers = std::array<uint8_t*, kMaxKernelArguments>;

template <size_t>
using PointerFor = uint8_t*;

template <size_t... I>
void CallWith(void* entry, const Pointers& pointers, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(PointerFor<I>...)>(entry)(pointers[I]...);
}

template <size_t Count>
void CallWithCount(void* entry, const Pointers& pointers) {
    CallWith(entry, pointers, std::make_index_sequence<Count>());
}

using Caller = void (*)(void*, const Pointers&);

template <size_t... Counts>
constexpr std::array<Caller, sizeof...(Counts)> MakeCallers(std::index_sequence<Counts...>) {
    return {CallWithCount<Counts>...};
}

constexpr auto kCallers = MakeCallers(std::make_index_sequence<kMaxKernelArguments + 1>());

int HostThreads(const LaunchOptions& options) {
    if (options.hostThreads > 0) return options.hostThreads;
    return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 4u));
}

void CheckLaunch(const void* entry, const std::vector<GmArgument>& arguments, const LaunchOptions& options) {
    if (entry == nullptr) throw std::invalid_argument("entry: expected the kernel's address, got nullptr");
    if (options.blocks < 1) {
        throw std::invalid_argument("blocks: expected at least 1, got " + std::to_string(options.blocks));
    }
    if (options.cores < 1) {
        throw std::invalid_argument("cores: expected at least 1, got " + std::to_string(options.cores));
    }
    if (arguments.size() > kMaxKernelArguments) {
        throw std::invalid_argument("arguments: expected at most " + std::to_string(kMaxKernelArguments) + ", got " +
                                    std::to_string(arguments.size()));
    }
}

}  // namespace

// The cores of one launch.
class Device {
public:
    Device(void* entry, const std::vector<GmArgument>& arguments, const LaunchOptions& options)
        : entry_(entry),
          arguments_(arguments.size()),
          options_(options),
          memory_(arguments),
          suppression_(options.suppress),
          cores_(options.blocks),
          scheduler_(options.blocks, HostThreads(options), [this](int64_t block) { return RunBlock(block); }) {
        for (size_t i = 0; i < arguments.size(); ++i) pointers_[i] = static_cast<uint8_t*>(arguments[i].data);
    }

    RunResult Run() {
        scheduler_.RunAll();
        return Collect();
    }

private:
    bool RunBlock(int64_t block) {
        const Machine shared = {options_, memory_, scheduler_, suppression_};
        cores_[block].reset(new Core(std::make_unique<CoreImpl>(shared, block)));
        CoreImpl& impl = cores_[block]->Impl();
        SetCurrentCore(cores_[block].get());
        try {
            kCallers[arguments_](entry_, pointers_);
        } catch (const KernelFault&) {
            impl.faulted = true;
        } catch (const std::exception& error) {
            impl.faulted = true;
            impl.Report(Check::kException, Where{}, "", std::string("the kernel threw: ") + error.what(),
                        "a kernel cannot throw; look at the library call that does");
        }
        if (!impl.faulted) impl.FinishKernel();
        SetCurrentCore(nullptr);
        impl.ReleaseUb();
        return !impl.faulted || impl.abandoned;
    }

    RunResult Collect() {
        RunResult result;
        result.cores = options_.cores;
        result.completed = true;
        FindingLog findings;
        std::vector<const AccessLog*> logs;
        std::map<SyncLog::Key, uint64_t> sites;
        for (int buffer = 0; buffer < memory_.Size(); ++buffer) {
            result.traffic.emplace_back();
            result.traffic.back().buffer = memory_[buffer].name;
        }
        for (auto& core : cores_) {
            CoreImpl& impl = core->Impl();
            for (const Finding& finding : impl.findings.List()) findings.Add(finding);
            logs.push_back(&impl.log);
            result.completed = result.completed && !impl.faulted;
            impl.syncLog.AddTo(sites);
            for (int buffer = 0; buffer < memory_.Size(); ++buffer) Add(result.traffic[buffer], impl.traffic[buffer]);
            if (options_.trace) result.blocks.push_back(std::move(impl.trace));
        }
        if (options_.checks) CheckBetweenCores(logs, memory_, findings);
        result.findings = findings.List();
        for (const auto& [key, count] : sites) {
            result.syncSites.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), count});
        }
        return result;
    }

    static void Add(Traffic& total, const Traffic& part) {
        total.bytesRead += part.bytesRead;
        total.bytesWritten += part.bytesWritten;
        total.readCommands += part.readCommands;
        total.writeCommands += part.writeCommands;
        total.scalarReads += part.scalarReads;
        total.scalarWrites += part.scalarWrites;
    }

    void* const entry_;
    const size_t arguments_;
    Pointers pointers_ = {};
    const LaunchOptions options_;
    GmMemory memory_;
    const Suppression suppression_;
    std::vector<std::unique_ptr<Core>> cores_;
    BlockScheduler scheduler_;
};

RunResult Launch(void* entry, const std::vector<GmArgument>& arguments, const LaunchOptions& options) {
    CheckLaunch(entry, arguments, options);
    return Device(entry, arguments, options).Run();
}

}  // namespace ascendc_host
