// TQue: who owns a piece of local memory, and the flags that hand it from pipe to pipe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "enums.h"
#include "machine/core.h"
#include "positions.h"
#include "tensor.h"

namespace AscendC {
class TPipe;
}

namespace ascendc_host {

constexpr int kNoEvent = -1;

struct QueueBuffer {
    uint32_t id = 0;
    Where allocatedAt;
    int enqueueEvent = kNoEvent;
    PipePair enqueuePipes;
    int freeEvent = kNoEvent;
    PipePair freePipes;
};

using QueueBuffers = std::vector<QueueBuffer>;

// Waits for the flags of freed buffers and reports tensors that were never freed. The end of a TPipe calls it.
inline void DrainQueue(QueueBuffers& buffers, Where where)
{
    Core& core = Core::Current();
    for (QueueBuffer& buffer : buffers) {
        if (buffer.freeEvent != kNoEvent) {
            core.WaitFlag(buffer.freePipes.from, buffer.freePipes.to, buffer.freeEvent, where);
            core.ReleaseEventId(buffer.freePipes.from, buffer.freePipes.to, buffer.freeEvent);
            buffer.freeEvent = kNoEvent;
        }
        if (core.GetBufferState(buffer.id) != BufferState::kFree && !core.Faulted()) {
            core.Report(Check::kLeak, buffer.allocatedAt, "AllocTensor",
                        "the tensor is still in use when its TPipe ends",
                        "call FreeTensor for every tensor that AllocTensor or DeQue hands out");
        }
    }
}

// The untyped part of a queue. The buffers are shared with the TPipe, which may die before or after the queue.
class Queue {
public:
    void Init(std::shared_ptr<QueueBuffers> buffers) { buffers_ = std::move(buffers); }

    LocalView Alloc(Where where)
    {
        Core& core = Core::Current();
        for (size_t tried = 0; tried < Count(); ++tried) {
            QueueBuffer& buffer = (*buffers_)[cursor_];
            cursor_ = (cursor_ + 1) % Count();
            if (core.GetBufferState(buffer.id) != BufferState::kFree) continue;
            if (buffer.freeEvent != kNoEvent) {
                if (!core.Suppressed(where)) {
                    core.WaitFlag(buffer.freePipes.from, buffer.freePipes.to, buffer.freeEvent, where);
                }
                core.ReleaseEventId(buffer.freePipes.from, buffer.freePipes.to, buffer.freeEvent);
                buffer.freeEvent = kNoEvent;
            }
            core.SetBufferState(buffer.id, BufferState::kAllocated);
            buffer.allocatedAt = where;
            return core.WholeBuffer(buffer.id);
        }
        core.Fault(Check::kQueue, where, "AllocTensor",
                   Count() == 0 ? "the queue has no buffers"
                                : "all " + std::to_string(Count()) +
                                      " buffers of the queue are in use; the core would "
                                      "wait for ever",
                   Count() == 0 ? "call TPipe::InitBuffer for the queue first"
                                : "free a tensor of this queue first, or give InitBuffer more buffers");
    }

    void EnQue(const LocalView& view, PipePair pipes, int32_t depth, Where where)
    {
        Core& core = Core::Current();
        QueueBuffer& buffer = Find(view, "EnQue", where);
        if (core.GetBufferState(buffer.id) != BufferState::kAllocated) {
            core.Fault(Check::kQueue, where, "EnQue", "the tensor is not in the kernel's hands: it is free or enqueued",
                       "enqueue what AllocTensor or DeQue returned, once");
        }
        if (waiting_.size() >= static_cast<size_t>(depth)) {
            core.Fault(Check::kQueue, where, "EnQue", "the queue of depth " + std::to_string(depth) + " is full",
                       "call DeQue first, or give the TQue a larger depth");
        }
        buffer.enqueuePipes = pipes;
        if (!core.Suppressed(where)) {
            buffer.enqueueEvent = core.AllocateEventId(pipes.from, pipes.to, where);
            core.SetFlag(pipes.from, pipes.to, buffer.enqueueEvent, where);
        }
        core.SetBufferState(buffer.id, BufferState::kEnqueued);
        waiting_.push_back(&buffer);
    }

    LocalView DeQue(Where where)
    {
        Core& core = Core::Current();
        if (waiting_.empty()) {
            core.Fault(Check::kQueue, where, "DeQue", "no tensor is enqueued; the core would wait for ever",
                       "call EnQue first");
        }
        QueueBuffer& buffer = *waiting_.front();
        waiting_.pop_front();
        if (buffer.enqueueEvent != kNoEvent) {
            if (!core.Suppressed(where)) {
                core.WaitFlag(buffer.enqueuePipes.from, buffer.enqueuePipes.to, buffer.enqueueEvent, where);
            }
            core.ReleaseEventId(buffer.enqueuePipes.from, buffer.enqueuePipes.to, buffer.enqueueEvent);
            buffer.enqueueEvent = kNoEvent;
        }
        core.SetBufferState(buffer.id, BufferState::kAllocated);
        return core.WholeBuffer(buffer.id);
    }

    void Free(const LocalView& view, PipePair pipes, Where where)
    {
        Core& core = Core::Current();
        QueueBuffer& buffer = Find(view, "FreeTensor", where);
        if (core.GetBufferState(buffer.id) != BufferState::kAllocated) {
            core.Fault(Check::kQueue, where, "FreeTensor",
                       "the tensor is not in the kernel's hands: it is free already or still enqueued",
                       "free a tensor once, after DeQue");
        }
        if (!core.Suppressed(where)) {
            buffer.freePipes = pipes;
            buffer.freeEvent = core.AllocateEventId(pipes.from, pipes.to, where);
            core.SetFlag(pipes.from, pipes.to, buffer.freeEvent, where);
        }
        core.SetBufferState(buffer.id, BufferState::kFree);
    }

private:
    size_t Count() const { return buffers_ == nullptr ? 0 : buffers_->size(); }

    QueueBuffer& Find(const LocalView& view, const char* call, Where where)
    {
        Core& core = Core::Current();
        for (size_t i = 0; i < Count(); ++i) {
            QueueBuffer& buffer = (*buffers_)[i];
            if (buffer.id != view.buffer) continue;
            if (core.WholeBuffer(buffer.id).generation != view.generation) {
                core.Fault(Check::kUseAfterFree, where, call, "the tensor was freed and its buffer handed out again",
                           "use the tensor that the last AllocTensor or DeQue returned");
            }
            return buffer;
        }
        core.Fault(Check::kQueue, where, call, "the tensor does not belong to this queue",
                   "use the queue that allocated the tensor");
    }

    std::shared_ptr<QueueBuffers> buffers_;
    std::deque<QueueBuffer*> waiting_;
    size_t cursor_ = 0;
};

}  // namespace ascendc_host

namespace AscendC {

using TEventID = int8_t;

constexpr TPosition GetBufferLogicPos(TPosition pos, bool isSrc)
{
    switch (pos) {
        case TPosition::A1:
            return isSrc ? TPosition::GM : TPosition::A1;
        case TPosition::B1:
            return isSrc ? TPosition::GM : TPosition::B1;
        case TPosition::A2:
            return isSrc ? TPosition::A1 : TPosition::A2;
        case TPosition::B2:
            return isSrc ? TPosition::B1 : TPosition::B2;
        case TPosition::CO1:
            return isSrc ? TPosition::CO1 : TPosition::CO2;
        case TPosition::VECIN:
            return isSrc ? TPosition::GM : TPosition::VECIN;
        case TPosition::VECOUT:
            return isSrc ? TPosition::VECOUT : TPosition::GM;
        default:
            return TPosition::MAX;
    }
}

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
    static_assert(ascendc_host::IsQueuePath(src, dst),
                  "a queue lies between GM, VECIN, VECOUT and VECCALC on a vector core (TQue: VECIN or VECOUT), in A1, "
                  "B1, A2, B2 or CO1 on a cube core");

public:
    template <typename T>
    LocalTensor<T> AllocTensor(Where where = Where::Here())
    {
        return LocalTensor<T>(queue_.Alloc(where));
    }

    template <typename T>
    void FreeTensor(LocalTensor<T>& tensor, Where where = Where::Here())
    {
        queue_.Free(tensor.View(), ascendc_host::QueueEvent(src, dst, false), where);
    }

    template <typename T>
    bool EnQue(const LocalTensor<T>& tensor, Where where = Where::Here())
    {
        queue_.EnQue(tensor.View(), ascendc_host::QueueEvent(src, dst, true), depth, where);
        return true;
    }

    template <typename T>
    LocalTensor<T> DeQue(Where where = Where::Here())
    {
        return LocalTensor<T>(queue_.DeQue(where));
    }

private:
    friend class TPipe;
    static constexpr TPosition position = ascendc_host::BufferPosition(src, dst);
    ascendc_host::Queue queue_;
};

template <TPosition pos, int32_t depth, auto mask = 0>
class TQue : public TQueBind<GetBufferLogicPos(pos, true), GetBufferLogicPos(pos, false), depth, mask> {};

}  // namespace AscendC
