#include "launch.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "between_cores.h"
#include "core_impl.h"
#include "defects.h"
#include "same_address.h"

namespace ascendc_host {

namespace {

using Pointers = std::array<uint8_t*, kMaxKernelArguments>;

template <size_t>
using PointerFor = uint8_t*;

template <size_t... I>
void CallWith(void* entry, const Pointers& pointers, std::index_sequence<I...>)
{
    reinterpret_cast<void (*)(PointerFor<I>...)>(entry)(pointers[I]...);
}

template <size_t Count>
void CallWithCount(void* entry, const Pointers& pointers)
{
    CallWith(entry, pointers, std::make_index_sequence<Count>());
}

using Caller = void (*)(void*, const Pointers&);

template <size_t... Counts>
constexpr std::array<Caller, sizeof...(Counts)> MakeCallers(std::index_sequence<Counts...>)
{
    return {CallWithCount<Counts>...};
}

constexpr auto kCallers = MakeCallers(std::make_index_sequence<kMaxKernelArguments + 1>());

int HostThreads(const LaunchOptions& options)
{
    if (!Planted(Defect::kNone)) return 1;
    if (options.hostThreads > 0) return options.hostThreads;
    return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 4u));
}

void CheckLaunch(const void* entry, const std::vector<GmArgument>& arguments, const LaunchOptions& options)
{
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
    Device(void* entry, const std::vector<GmArgument>& arguments, const LaunchOptions& options, BlockShape shape)
        : entry_(entry),
          arguments_(arguments.size()),
          options_(options),
          layout_(shape, options.blocks),
          memory_(arguments),
          suppression_(options.suppress),
          cores_(layout_.Cores()),
          flags_(options.blocks),
          scheduler_(
              layout_.Cores(), HostThreads(options), [this](int64_t core) { return RunCore(core); },
              [this](int64_t core) { return layout_.Seat(core).kind == CoreKind::kVector; })
    {
        for (size_t i = 0; i < arguments.size(); ++i) pointers_[i] = static_cast<uint8_t*>(arguments[i].data);
    }

    void Run() { scheduler_.RunAll(); }

    // The cores that the kernel's type asks for, where they are others than these.
    std::optional<BlockShape> WantedShape() const
    {
        for (const auto& core : cores_) {
            if (core->Impl().wrongShape) return ShapeOf(core->Impl().kernelType);
        }
        return std::nullopt;
    }

    RunResult Collect()
    {
        RunResult result;
        result.cores = options_.cores;
        result.completed = true;
        FindingLog findings;
        std::vector<CoreLog> logs;
        std::map<SyncLog::Key, uint64_t> sites;
        for (int buffer = 0; buffer < memory_.Size(); ++buffer) {
            result.traffic.emplace_back();
            result.traffic.back().buffer = memory_[buffer].name;
        }
        for (auto& core : cores_) {
            CoreImpl& impl = core->Impl();
            for (const Finding& finding : impl.findings.List()) findings.Add(finding);
            logs.push_back({&impl.log, &impl.knowledge, impl.seat, impl.Name()});
            result.completed = result.completed && !impl.faulted;
            impl.syncLog.AddTo(sites);
            for (int buffer = 0; buffer < memory_.Size(); ++buffer) Add(result.traffic[buffer], impl.traffic[buffer]);
            impl.trace.seat = impl.seat;
            if (options_.trace) result.traces.push_back(std::move(impl.trace));
        }
        CountReadersBefore(result.traces);
        for (int buffer = 0; buffer < memory_.Size(); ++buffer) {
            const Traffic& traffic = result.traffic[buffer];
            result.bytesThroughL2 += memory_[buffer].workspace
                                         ? memory_[buffer].bytes
                                         : traffic.bytesRead + traffic.bytesWritten - traffic.bytesPastL2;
        }
        if (options_.checks) {
            CheckLeftFlags(findings);
            CheckBetweenCores(logs, layout_.Mixed(), memory_, findings);
        }
        result.findings = findings.List();
        for (const auto& [key, count] : sites) {
            result.syncSites.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), count});
        }
        return result;
    }

private:
    bool RunCore(int64_t core)
    {
        const Machine shared = {options_, layout_, memory_, scheduler_, suppression_};
        const CoreSeat seat = layout_.Seat(core);
        cores_[core].reset(new Core(std::make_unique<CoreImpl>(shared, seat, flags_[seat.block])));
        CoreImpl& impl = cores_[core]->Impl();
        SetCurrentCore(cores_[core].get());
        try {
            kCallers[arguments_](entry_, pointers_);
        } catch (const KernelFault&) {
            impl.faulted = true;
        } catch (const std::exception& error) {
            impl.faulted = true;
            impl.Report(Check::kException, Where{}, "", std::string("the kernel threw: ") + error.what(),
                        "a kernel cannot throw; look at the library call that does");
        }
        Finish(impl);
        SetCurrentCore(nullptr);
        impl.ReleaseLocal();
        return !impl.faulted || impl.abandoned;
    }

    static void Finish(CoreImpl& impl)
    {
        try {
            if (!impl.faulted) impl.FinishKernel();
        } catch (const KernelFault&) {
            impl.faulted = true;
        }
    }

    void CheckLeftFlags(FindingLog& findings)
    {
        for (const auto& core : cores_) {
            CoreImpl& impl = core->Impl();
            if (impl.faulted) return;  // the others may have been left before they could wait
        }
        for (const auto& core : cores_) core->Impl().CheckUnwaitedCrossCoreFlags(findings);
    }

    static void Add(Traffic& total, const Traffic& part)
    {
        total.bytesRead += part.bytesRead;
        total.bytesWritten += part.bytesWritten;
        total.bytesPastL2 += part.bytesPastL2;
        total.readCommands += part.readCommands;
        total.writeCommands += part.writeCommands;
        total.commandsPastL2 += part.commandsPastL2;
        total.scalarReads += part.scalarReads;
        total.scalarWrites += part.scalarWrites;
    }

    void* const entry_;
    const size_t arguments_;
    Pointers pointers_ = {};
    const LaunchOptions options_;
    const CoreLayout layout_;
    GmMemory memory_;
    const Suppression suppression_;
    std::vector<std::unique_ptr<Core>> cores_;
    std::vector<CrossCoreFlags> flags_;  // by block
    CoreScheduler scheduler_;
};

RunResult Launch(void* entry, const std::vector<GmArgument>& arguments, const LaunchOptions& wanted)
{
    CheckLaunch(entry, arguments, wanted);
    plantedDefect = DefectOf(wanted.defect);
    LaunchOptions options = wanted;
    options.checks = options.checks && Planted(Defect::kNone);
    // the kernel itself says which cores it wants, in its first statements; on others it starts again
    auto device = std::make_unique<Device>(entry, arguments, options, ShapeOf(KernelType::kAivOnly));
    device->Run();
    if (const std::optional<BlockShape> shape = device->WantedShape()) {
        device = std::make_unique<Device>(entry, arguments, options, *shape);
        device->Run();
    }
    return device->Collect();
}

}  // namespace ascendc_host
