// Streams: tasks in order, done at once or by a worker thread of the stream, or recorded into a graph.
#pragma once

#include <acl/acl.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace acl_emulator {

// What a device does for one launch; returns the text of its failure, or nothing.
using Task = std::function<std::string()>;

// A captured sequence. Tasks of several streams are in the order of their launch, which respects their events.
struct Graph {
    std::vector<Task> tasks;
};

class Stream {
public:
    Stream(int id, int device);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    aclError Enqueue(Task task);
    aclError Synchronize();  // fails with the first failure since the last time
    bool Idle();
    int Id() const { return id_; }
    int Device() const { return device_; }

    // The graph that is being captured, or null.
    std::shared_ptr<Graph> Capture();
    void SetCapture(std::shared_ptr<Graph> graph);

private:
    void Work();

    const int id_;
    const int device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> tasks_;
    std::string failure_;
    bool busy_ = false;
    bool stop_ = false;
    std::shared_ptr<Graph> capture_;
    std::thread worker_;
};

Stream& StreamOf(aclrtStream handle);  // a null handle is the default stream of the thread's device
aclError CheckStream(const char* function, aclrtStream handle);  // exists, and is of the thread's device
aclError Enqueue(aclrtStream handle, Task task);
aclError SynchronizeDevice(int device);
void EndCapture(const std::shared_ptr<Graph>& graph);  // on every stream that takes part in it

}  // namespace acl_emulator
