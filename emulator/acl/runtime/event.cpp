// Events. A record and a wait are tasks of their streams; a wait is for the latest record before it.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "error.h"
#include "stream.h"

using namespace acl_emulator;

namespace {

using Clock = std::chrono::steady_clock;

struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0;  // records asked for
    uint64_t reached = 0;   // the last one that its stream has come to
    Clock::time_point time{};
    std::weak_ptr<Graph> capture;  // of the stream of the last record
};

// A handle owns a shared pointer: tasks may still need an event that has been destroyed.
using Handle = std::shared_ptr<Event>;

const Handle& EventOf(aclrtEvent event) { return *static_cast<Handle*>(event); }

bool Complete(aclrtEvent handle)
{
    Event& event = *EventOf(handle);
    const std::lock_guard lock(event.mutex);
    return event.reached >= event.recorded;
}

Clock::time_point TimeOf(aclrtEvent handle)
{
    Event& event = *EventOf(handle);
    const std::lock_guard lock(event.mutex);
    return event.time;
}

}  // namespace

extern "C" {

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t)
{
    *event = new Handle(std::make_shared<Event>());
    return ACL_SUCCESS;
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) { return aclrtCreateEventExWithFlag(event, flag); }

aclError aclrtDestroyEvent(aclrtEvent event)
{
    delete &EventOf(event);
    return ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream)
{
    Handle event = EventOf(handle);
    uint64_t number = 0;
    {
        const std::lock_guard lock(event->mutex);
        event->capture = StreamOf(stream).Capture();
        if (!event->capture.expired()) return ACL_SUCCESS;  // a captured record only orders the streams of the graph
        number = ++event->recorded;
    }
    Trace("record event %p on stream %p", handle, stream);
    return Enqueue(stream, [event, number] {
        const std::lock_guard lock(event->mutex);
        event->reached = number;
        event->time = Clock::now();
        event->changed.notify_all();
        return std::string();
    });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent handle)
{
    Handle event = EventOf(handle);
    uint64_t number = 0;
    {
        const std::lock_guard lock(event->mutex);
        if (std::shared_ptr<Graph> graph = event->capture.lock()) {
            StreamOf(stream).SetCapture(std::move(graph));  // the waiting stream joins the capture
            return ACL_SUCCESS;
        }
        number = event->recorded;
    }
    Trace("stream %p waits for event %p", stream, handle);
    return Enqueue(stream, [event, number] {
        std::unique_lock lock(event->mutex);
        event->changed.wait(lock, [&] { return event->reached >= number; });
        return std::string();
    });
}

aclError aclrtSynchronizeEvent(aclrtEvent handle)
{
    Handle event = EventOf(handle);
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->reached >= event->recorded; });
    return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status)
{
    *status = Complete(event) ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status)
{
    *status = Complete(event) ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent begin, aclrtEvent end)
{
    *milliseconds = std::chrono::duration<float, std::milli>(TimeOf(end) - TimeOf(begin)).count();
    return ACL_SUCCESS;
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds)
{
    const auto sinceStart = TimeOf(event).time_since_epoch();
    *microseconds = std::chrono::duration_cast<std::chrono::microseconds>(sinceStart).count();
    return ACL_SUCCESS;
}

}  // extern "C"
