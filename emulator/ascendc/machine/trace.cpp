#include "trace.h"

#include <cstdio>
#include <memory>
#include <set>
#include <stdexcept>

#include "json.h"
#include "text.h"

namespace ascendc_host {

namespace {

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};

class TraceFile {
public:
    explicit TraceFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w"))
    {
        if (!file_) throw std::runtime_error("cannot write the trace to " + path);
        Print("{\"otherData\":{\"times\":\"modelled, uncalibrated\"},\"traceEvents\":[\n");
    }

    void Event(JsonWriter& event)
    {
        if (!first_) Print(",\n");
        first_ = false;
        Print(event.Take());
    }

    void Finish()
    {
        Print("\n]}\n");
        if (std::fflush(file_.get()) != 0) throw std::runtime_error("cannot write the trace to " + path_);
    }

private:
    void Print(const std::string& text) { std::fputs(text.c_str(), file_.get()); }

    std::string path_;
    std::unique_ptr<std::FILE, CloseFile> file_;
    bool first_ = true;
};

void NameCore(TraceFile& file, int64_t core, CoreKind kind)
{
    const auto name = [&](const char* what, int64_t thread, const std::string& value) {
        JsonWriter event;
        event.Open('{').Key("name").Value(std::string(what)).Key("ph").Value(std::string("M"));
        event.Key("pid").Value(core).Key("tid").Value(thread);
        event.Key("args").Open('{').Key("name").Value(value).Close('}').Close('}');
        file.Event(event);
    };
    name("process_name", 0,
         std::string(CoreKindName(kind)) + " core " + std::to_string(core) + " (modelled, uncalibrated)");
    for (int slot = 0; slot < kSlots; ++slot) {
        if (PipeAt(kind, slot) != Pipe::kCount) name("thread_name", slot, PipeName(PipeAt(kind, slot)));
    }
}

void WriteSpan(TraceFile& file, const RunResult& run, const Span& span, double cyclesPerMicrosecond)
{
    const Record& record = *span.record;
    const Issue& issue = run.traces[span.trace].IssueOf(record.slot, record.seq);
    JsonWriter event;
    event.Open('{').Key("name").Value(std::string(issue.call)).Key("ph").Value(std::string("X"));
    event.Key("pid").Value(span.core).Key("tid").Value(static_cast<int64_t>(record.slot));
    event.Key("ts").Value(span.begin / cyclesPerMicrosecond);
    event.Key("dur").Value((span.end - span.begin) / cyclesPerMicrosecond);
    event.Key("args").Open('{').Key("at").Value(Place(issue.where));
    event.Key("block").Value(run.traces[span.trace].seat.block);
    if (record.kind == RecordKind::kDma) {
        event.Key("bytes").Value(record.gmBytes).Key("done").Value(span.done / cyclesPerMicrosecond);
        if (record.gmBuffer >= 0) event.Key("buffer").Value(run.traffic[record.gmBuffer].buffer);
    }
    if (record.kind == RecordKind::kCompute) {
        event.Key("repeats").Value(static_cast<double>(record.repeats));
        event.Key("conflict cycles").Value(static_cast<double>(record.conflicts));
    }
    event.Close('}').Close('}');
    file.Event(event);
}

}  // namespace

void WriteChromeTrace(const RunResult& run, const TimelineOptions& options, const std::string& path)
{
    TraceFile file(path);
    std::set<int64_t> named;
    const double cyclesPerMicrosecond = options.cost.gigahertz * 1e3;
    Simulate(run, options, [&](const Span& span) {
        if (named.insert(span.core).second) NameCore(file, span.core, run.traces[span.trace].seat.kind);
        WriteSpan(file, run, span, cyclesPerMicrosecond);
    });
    file.Finish();
}

}  // namespace ascendc_host
