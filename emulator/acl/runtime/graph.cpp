// NPUGraph: what is launched on a captured stream is kept, and done again at every replay.
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "error.h"
#include "stream.h"

using namespace acl_emulator;

namespace {

// All graphs by their handle, which is the same during the capture and after it.
class Graphs {
public:
    static Graphs& Get()
    {
        static Graphs* graphs = new Graphs;
        return *graphs;
    }

    std::shared_ptr<Graph> Add()
    {
        const std::lock_guard lock(mutex_);
        auto graph = std::make_shared<Graph>();
        graphs_[graph.get()] = graph;
        return graph;
    }

    std::shared_ptr<Graph> Find(aclmdlRI model)
    {
        const std::lock_guard lock(mutex_);
        const auto found = graphs_.find(model);
        return found == graphs_.end() ? nullptr : found->second;
    }

    void Remove(aclmdlRI model)
    {
        const std::lock_guard lock(mutex_);
        graphs_.erase(model);
    }

private:
    std::mutex mutex_;
    std::map<void*, std::shared_ptr<Graph>> graphs_;
};

}  // namespace

extern "C" {

aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode)
{
    Stream& stream = StreamOf(handle);
    if (stream.Capture() != nullptr) {
        return Fail(ACL_ERROR_RT_STREAM_CAPTURED, "aclmdlRICaptureBegin: the stream is captured already");
    }
    stream.SetCapture(Graphs::Get().Add());
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI* model)
{
    const std::shared_ptr<Graph> graph = StreamOf(handle).Capture();
    if (graph == nullptr) {
        return Fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "aclmdlRICaptureEnd: the stream is not captured");
    }
    EndCapture(graph);
    Trace("captured %zu launches", graph->tasks.size());
    *model = graph.get();
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status, aclmdlRI* model)
{
    const std::shared_ptr<Graph> graph = StreamOf(stream).Capture();
    *status = graph != nullptr ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    if (model != nullptr) *model = graph.get();
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode*) { return ACL_SUCCESS; }

aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream)
{
    const std::shared_ptr<Graph> graph = Graphs::Get().Find(model);
    if (graph == nullptr) {
        return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclmdlRIExecuteAsync: expected a graph, got one that is gone");
    }
    Trace("replay of %zu launches", graph->tasks.size());
    return Enqueue(stream, [graph] {
        for (const Task& task : graph->tasks) {
            if (std::string failure = task(); !failure.empty()) return failure;
        }
        return std::string();
    });
}

aclError aclmdlRIDestroy(aclmdlRI model)
{
    Graphs::Get().Remove(model);
    return ACL_SUCCESS;
}

}  // extern "C"
