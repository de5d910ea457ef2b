#include "stream.h"

#include <map>

#include "device.h"
#include "error.h"
#include "settings.h"

namespace acl_emulator {
namespace {

struct Registry {
    std::mutex mutex;
    int nextId = 1;
    std::map<Stream*, std::unique_ptr<Stream>> streams;
    std::map<int, Stream*> defaults;
};

// Never destroyed, because worker threads may outlive main.
Registry& AllStreams()
{
    static Registry* registry = new Registry;
    return *registry;
}

Stream* CreateLocked(Registry& registry, int device)
{
    auto stream = std::make_unique<Stream>(registry.nextId++, device);
    Stream* handle = stream.get();
    registry.streams[handle] = std::move(stream);
    return handle;
}

template <typename Action>
void ForEachStream(Action action)
{
    Registry& registry = AllStreams();
    std::vector<Stream*> streams;
    {
        const std::lock_guard lock(registry.mutex);
        for (const auto& entry : registry.streams) streams.push_back(entry.first);
    }
    for (Stream* stream : streams) action(*stream);
}

}  // namespace

Stream::Stream(int id, int device) : id_(id), device_(device)
{
    if (GetSettings().async) worker_ = std::thread([this] { Work(); });
}

Stream::~Stream()
{
    if (!worker_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
}

void Stream::Work()
{
    SetCurrentDevice(device_);
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        busy_ = true;
        lock.unlock();
        std::string failure = task();
        task = nullptr;  // what it keeps alive may be freed before the stream counts as idle
        lock.lock();
        busy_ = false;
        if (failure_.empty()) failure_ = std::move(failure);
        changed_.notify_all();
    }
}

aclError Stream::Enqueue(Task task)
{
    if (const std::shared_ptr<Graph> graph = Capture()) {
        graph->tasks.push_back(std::move(task));
        return ACL_SUCCESS;
    }
    if (!worker_.joinable()) {
        const std::string failure = task();
        return failure.empty() ? ACL_SUCCESS : Fail(ACL_ERROR_RT_VECTOR_CORE_EXCEPTION, failure);
    }
    {
        const std::lock_guard lock(mutex_);
        tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
    return ACL_SUCCESS;
}

aclError Stream::Synchronize()
{
    if (Capture() != nullptr) {
        return Fail(ACL_ERROR_RT_STREAM_CAPTURED, "a stream cannot be waited for while it is captured");
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
    if (failure_.empty()) return ACL_SUCCESS;
    const std::string failure = std::move(failure_);
    failure_.clear();
    return Fail(ACL_ERROR_RT_VECTOR_CORE_EXCEPTION, failure);
}

bool Stream::Idle()
{
    const std::lock_guard lock(mutex_);
    return tasks_.empty() && !busy_;
}

std::shared_ptr<Graph> Stream::Capture()
{
    const std::lock_guard lock(mutex_);
    return capture_;
}

void Stream::SetCapture(std::shared_ptr<Graph> graph)
{
    const std::lock_guard lock(mutex_);
    capture_ = std::move(graph);
}

Stream& StreamOf(aclrtStream handle)
{
    if (handle != nullptr) return *static_cast<Stream*>(handle);
    Registry& registry = AllStreams();
    const std::lock_guard lock(registry.mutex);
    Stream*& stream = registry.defaults[CurrentDeviceOrFirst()];
    if (stream == nullptr) stream = CreateLocked(registry, CurrentDeviceOrFirst());
    return *stream;
}

aclError CheckStream(const char* function, aclrtStream handle)
{
    if (handle == nullptr) return ACL_SUCCESS;
    Registry& registry = AllStreams();
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.streams.find(static_cast<Stream*>(handle));
    if (found == registry.streams.end()) {
        return Fail(ACL_ERROR_RT_PARAM_INVALID, std::string(function) + ": expected a stream that exists");
    }
    const int device = found->second->Device();
    if (device == CurrentDeviceOrFirst()) return ACL_SUCCESS;
    return Fail(ACL_ERROR_RT_STREAM_CONTEXT, std::string(function) + ": expected a stream of the current device " +
                                                 std::to_string(CurrentDeviceOrFirst()) + ", got one of device " +
                                                 std::to_string(device));
}

aclError Enqueue(aclrtStream handle, Task task) { return StreamOf(handle).Enqueue(std::move(task)); }

aclError SynchronizeDevice(int device)
{
    aclError result = ACL_SUCCESS;
    ForEachStream([&](Stream& stream) {
        if (stream.Device() != device || stream.Capture() != nullptr) return;
        if (const aclError error = stream.Synchronize(); error != ACL_SUCCESS) result = error;
    });
    return result;
}

void EndCapture(const std::shared_ptr<Graph>& graph)
{
    ForEachStream([&](Stream& stream) {
        if (stream.Capture() == graph) stream.SetCapture(nullptr);
    });
}

}  // namespace acl_emulator

using namespace acl_emulator;

extern "C" {

aclError aclrtCreateStream(aclrtStream* stream)
{
    Registry& registry = AllStreams();
    const std::lock_guard lock(registry.mutex);
    *stream = CreateLocked(registry, CurrentDeviceOrFirst());
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) { return aclrtCreateStream(stream); }

aclError aclrtDestroyStream(aclrtStream stream)
{
    Registry& registry = AllStreams();
    std::unique_ptr<Stream> ended;  // declared before the lock: the worker is joined after the registry is unlocked
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.streams.find(static_cast<Stream*>(stream));
    if (found == registry.streams.end()) {
        return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtDestroyStream: expected a stream that exists");
    }
    ended = std::move(found->second);
    registry.streams.erase(found);
    return ACL_SUCCESS;
}

aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

aclError aclrtSynchronizeStream(aclrtStream stream) { return StreamOf(stream).Synchronize(); }

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) { return StreamOf(stream).Synchronize(); }

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status)
{
    *status = StreamOf(stream).Idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id)
{
    *id = StreamOf(stream).Id();
    return ACL_SUCCESS;
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* argument)
{
    return Enqueue(stream, [=] {
        function(argument);
        return std::string();
    });
}

aclError aclrtLaunchCallback(aclrtCallback function, void* argument, aclrtCallbackBlockType, aclrtStream stream)
{
    return aclrtLaunchHostFunc(stream, function, argument);
}

// Callbacks run on the stream itself, so no thread has to ask for them.
aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtProcessReport(int32_t) { return ACL_SUCCESS; }

aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) { return ACL_SUCCESS; }
aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }

aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* on)
{
    *on = 0;
    return ACL_SUCCESS;
}

}  // extern "C"
