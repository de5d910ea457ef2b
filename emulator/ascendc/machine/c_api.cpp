// The machine for other languages: plain structs in, JSON out. emulator/ascendc/library.py mirrors the structs.
#include <exception>
#include <memory>
#include <string>

#include "interface.h"
#include "json.h"
#include "launch.h"
#include "text.h"
#include "timeline.h"
#include "trace.h"

namespace ascendc_host {

namespace {

struct CTimelineOptions {
    int32_t hot;
    int32_t bankConflicts;
    Cost cost;
};

struct RunHandle {
    RunResult result;
    std::string answer;  // what the last call returned
    std::string error;
};

void WriteFindings(JsonWriter& json, const std::vector<Finding>& findings)
{
    json.Key("findings").Open('[');
    for (const Finding& finding : findings) {
        json.Open('{').Key("check").Value(std::string(CheckName(finding.check)));
        json.Key("file").Value(finding.file).Key("line").Value(static_cast<int64_t>(finding.line));
        json.Key("call").Value(finding.call).Key("what").Value(finding.what).Key("remedy").Value(finding.remedy);
        json.Key("block").Value(finding.block).Key("count").Value(finding.count).Close('}');
    }
    json.Close(']');
}

std::string ReportJson(const RunResult& run)
{
    JsonWriter json;
    json.Open('{').Key("completed").Value(run.completed);
    WriteFindings(json, run.findings);
    json.Key("sync_sites").Open('[');
    for (const SyncSite& site : run.syncSites) {
        json.Open('{').Key("file").Value(site.file).Key("line").Value(static_cast<int64_t>(site.line));
        json.Key("kind").Value(site.kind).Key("count").Value(site.count).Close('}');
    }
    json.Close(']').Key("traffic").Open('[');
    for (const Traffic& traffic : run.traffic) {
        json.Open('{').Key("buffer").Value(traffic.buffer);
        json.Key("bytes_read").Value(traffic.bytesRead).Key("bytes_written").Value(traffic.bytesWritten);
        json.Key("read_commands").Value(traffic.readCommands).Key("write_commands").Value(traffic.writeCommands);
        json.Key("commands_past_l2").Value(traffic.commandsPastL2);
        json.Key("scalar_reads").Value(traffic.scalarReads).Key("scalar_writes").Value(traffic.scalarWrites);
        json.Close('}');
    }
    return json.Close(']').Close('}').Take();
}

std::string TimelineJson(const RunResult& run, const TimelineOptions& options)
{
    const Timeline timeline = Simulate(run, options);
    JsonWriter json;
    json.Open('{').Key("cycles").Value(timeline.cycles);
    json.Key("launch_microseconds").Value(timeline.launchMicroseconds).Key("cores").Open('[');
    for (const CoreTimes& core : timeline.cores) {
        json.Open('{').Key("block").Value(core.seat.block).Key("kind").Value(std::string(CoreKindName(core.seat.kind)));
        json.Key("core").Value(core.core).Key("begin").Value(core.begin).Key("end").Value(core.end);
        json.Key("busy").Open('{');
        for (int slot = 0; slot < kSlots; ++slot) {
            const Pipe pipe = PipeAt(core.seat.kind, slot);
            if (pipe != Pipe::kCount) json.Key(PipeName(pipe)).Value(core.busy[slot]);
        }
        json.Close('}').Close('}');
    }
    return json.Close(']').Close('}').Take();
}

TimelineOptions FromC(const CTimelineOptions& options)
{
    return {options.hot != 0, options.bankConflicts != 0, options.cost};
}

// Runs `body`, keeping the text of an exception for ascendc_host_error; returns what `body` does, or `onError`.
template <typename Body>
auto Guarded(RunHandle* run, Body body, decltype(body()) onError)
{
    run->error.clear();
    try {
        return body();
    } catch (const std::exception& error) {
        run->error = error.what();
        return onError;
    }
}

}  // namespace

extern "C" {

RunHandle* ascendc_host_launch(void* entry, const CArgument* arguments, uint64_t count, const COptions* options)
{
    auto* run = new RunHandle;
    Guarded(
        run,
        [&] {
            std::vector<GmArgument> list;
            for (uint64_t i = 0; i < count; ++i) {
                const CArgument& argument = arguments[i];
                list.push_back({argument.name, argument.data, argument.bytes, static_cast<Role>(argument.role)});
            }
            const LaunchOptions launch = {options->blocks,        options->cores,       options->tilingKey,
                                          options->autoSync != 0, options->checks != 0, options->trace != 0,
                                          options->hostThreads,   options->suppress,    options->defect};
            run->result = Launch(entry, list, launch);
            return true;
        },
        false);
    return run;
}

const char* ascendc_host_error(const RunHandle* run) { return run->error.c_str(); }

const char* ascendc_host_report(RunHandle* run)
{
    run->answer = ReportJson(run->result);
    return run->answer.c_str();
}

const char* ascendc_host_timeline(RunHandle* run, const CTimelineOptions* options)
{
    return Guarded(
        run,
        [&]() -> const char* {
            run->answer = TimelineJson(run->result, FromC(*options));
            return run->answer.c_str();
        },
        nullptr);
}

int ascendc_host_write_trace(RunHandle* run, const CTimelineOptions* options, const char* path)
{
    return Guarded(
        run,
        [&] {
            WriteChromeTrace(run->result, FromC(*options), path);
            return 1;
        },
        0);
}

// A set of constants by name, so that other languages need not repeat them; 0 when there is none of that name.
int ascendc_host_cost_of(const char* column, Cost* cost)
{
    const std::optional<Cost> found = CostOf(column);
    if (found) *cost = *found;
    return found ? 1 : 0;
}

void ascendc_host_free(RunHandle* run) { delete run; }

}  // extern "C"

}  // namespace ascendc_host
