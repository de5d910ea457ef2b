#include "kernel_run.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "error.h"
#include "findings_text.h"
#include "settings.h"

namespace acl_emulator {
namespace {

using ascendc_host::CArgument;
using ascendc_host::COptions;
using ascendc_host::Role;

// A loaded kernel library.
struct Machine {
    void* entry;
    void* (*launch)(void*, const CArgument*, uint64_t, const COptions*);
    const char* (*error)(const void*);
    const char* (*report)(void*);
    void (*free)(void*);
};

template <typename Function>
void Find(void* library, const char* name, Function& function)
{
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string(name) + " is not in the kernel library");
}

Machine LoadMachine(const char* path, const char* entry)
{
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    Machine machine{};
    Find(library, entry, machine.entry);
    Find(library, "ascendc_host_launch", machine.launch);
    Find(library, "ascendc_host_error", machine.error);
    Find(library, "ascendc_host_report", machine.report);
    Find(library, "ascendc_host_free", machine.free);
    return machine;
}

const Machine& MachineOf(const char* path, const char* entry)
{
    static std::mutex mutex;
    static auto* machines = new std::map<std::string, Machine>;
    const std::lock_guard lock(mutex);
    const auto found = machines->find(path);
    return found != machines->end() ? found->second : machines->emplace(path, LoadMachine(path, entry)).first->second;
}

std::string Launch(const Machine& machine, const KernelRun& run, std::vector<uint8_t> tiling)
{
    std::vector<CArgument> arguments = run.arguments;
    arguments.push_back({"tiling", tiling.data(), tiling.size(), static_cast<int32_t>(Role::kIn)});
    const Settings& settings = GetSettings();
    COptions options{};
    options.blocks = run.blocks;
    options.cores = settings.vectorCores;
    options.tilingKey = run.tilingKey;
    options.checks = settings.checks ? 1 : 0;
    options.suppress = "";
    const std::string defect = PlantedDefect();
    options.defect = defect.c_str();
    const std::unique_ptr<void, void (*)(void*)> handle(
        machine.launch(machine.entry, arguments.data(), arguments.size(), &options), machine.free);
    const std::string error = machine.error(handle.get());
    return error.empty() ? FindingsText(machine.report(handle.get())) : error;
}

}  // namespace

std::string KernelRun::operator()() const
{
    Trace("%s: %lld blocks, tiling key %llu", name, static_cast<long long>(blocks),
          static_cast<unsigned long long>(tilingKey));
    std::string text;
    try {
        text = Launch(MachineOf(library, entry), *this, tiling);
    } catch (const std::exception& error) {
        text = error.what();
    }
    return text.empty() ? text : std::string(name) + ": " + text;
}

}  // namespace acl_emulator
