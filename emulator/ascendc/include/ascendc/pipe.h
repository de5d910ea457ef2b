// TPipe: hands out the local memories and the event ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "buffer.h"
#include "machine/core.h"
#include "mmad_results.h"
#include "positions.h"
#include "queue.h"
#include "registers.h"

namespace AscendC {

class TPipe;

}  // namespace AscendC

namespace ascendc_host {

constexpr uint32_t kMaxBuffers = 64;  // asc-devkit docs, TPipe::InitBuffer: all buffers of a TPipe together

inline AscendC::TPipe*& CurrentTPipe()
{
    static thread_local AscendC::TPipe* pipe = nullptr;
    return pipe;
}

}  // namespace ascendc_host

namespace AscendC {

class TPipe {
public:
    TPipe() { Init(); }
    ~TPipe() noexcept(false)
    {
        if (!destroyed_) Destroy();
    }
    TPipe(const TPipe&) = delete;
    TPipe& operator=(const TPipe&) = delete;

    void Init()
    {
        ascendc_host::CurrentMask() = ascendc_host::MaskRegister{};
        ascendc_host::UnreadResults().clear();
        ascendc_host::CurrentTPipe() = this;
        destroyed_ = false;
        TakeCubeEvents();
    }

    template <typename Queue>
    bool InitBuffer(Queue& que, uint8_t num, uint32_t len, Where where = Where::Here())
    {
        CheckBuffers(num, len, where);
        auto buffers = std::make_shared<ascendc_host::QueueBuffers>(num);
        for (ascendc_host::QueueBuffer& buffer : *buffers) {
            buffer.id = Allocate(len, Queue::position, where);
            ascendc_host::Core::Current().SetBufferState(buffer.id, ascendc_host::BufferState::kFree);
        }
        que.queue_.Init(buffers);
        queues_.push_back(buffers);
        return true;
    }

    template <TPosition pos>
    bool InitBuffer(TBuf<pos>& buf, uint32_t len, Where where = Where::Here())
    {
        CheckBuffers(1, len, where);
        buf.buffer_ = Allocate(len, pos, where);
        buf.initialised_ = true;
        return true;
    }

    template <HardEvent event>
    TEventID AllocEventID(Where where = Where::Here())
    {
        static_assert(ascendc_host::IsEvent(event), "AllocEventID: no core has such an event");
        constexpr ascendc_host::PipePair pipes = ascendc_host::PipesOf(event);
        return static_cast<TEventID>(ascendc_host::Core::Current().AllocateEventId(pipes.from, pipes.to, where));
    }

    template <HardEvent event>
    void ReleaseEventID(TEventID id)
    {
        static_assert(ascendc_host::IsEvent(event), "ReleaseEventID: no core has such an event");
        constexpr ascendc_host::PipePair pipes = ascendc_host::PipesOf(event);
        ascendc_host::Core::Current().ReleaseEventId(pipes.from, pipes.to, id);
    }

    // An id that is free at the moment; it is not taken, so use it at once.
    TEventID FetchEventID(HardEvent event, Where where = Where::Here())
    {
        const ascendc_host::PipePair pipes = ascendc_host::PipesOf(event);
        ascendc_host::Core& core = ascendc_host::Core::Current();
        if (!ascendc_host::IsEvent(event)) {
            core.Fault(ascendc_host::Check::kUnsupported, where, "FetchEventID", "no core has such an event",
                       "use an event between two pipes of the same core");
        }
        const int id = core.AllocateEventId(pipes.from, pipes.to, where);
        core.ReleaseEventId(pipes.from, pipes.to, id);
        return static_cast<TEventID>(id);
    }

    void Destroy()
    {
        destroyed_ = true;
        Drain();
        GiveCubeEventsBack();
        ascendc_host::Core& core = ascendc_host::Core::Current();
        core.Barrier(ascendc_host::Pipe::kAll, kInsideTPipe);
        core.ResetLocal();
        if (ascendc_host::CurrentTPipe() == this) ascendc_host::CurrentTPipe() = nullptr;
    }

private:
    // What a TPipe does by itself stands on no line of the kernel.
    static constexpr Where kInsideTPipe{"TPipe", 0};

    // On a cube core a TPipe sets M_MTE1 0 to 2 for as long as it lives (public header of CANN 8.1).
    static constexpr int kCubeEvents = 3;

    static bool OnCube() { return ascendc_host::Core::Current().Kind() == ascendc_host::CoreKind::kCube; }

    void TakeCubeEvents()
    {
        ascendc_host::Core& core = ascendc_host::Core::Current();
        for (int i = 0; OnCube() && i < kCubeEvents; ++i) {
            const int id = core.AllocateEventId(ascendc_host::Pipe::kM, ascendc_host::Pipe::kMte1, kInsideTPipe);
            core.SetFlag(ascendc_host::Pipe::kM, ascendc_host::Pipe::kMte1, id, kInsideTPipe);
        }
    }

    void GiveCubeEventsBack()
    {
        ascendc_host::Core& core = ascendc_host::Core::Current();
        for (int id = 0; OnCube() && id < kCubeEvents; ++id) {
            core.WaitFlag(ascendc_host::Pipe::kM, ascendc_host::Pipe::kMte1, id, kInsideTPipe);
            core.ReleaseEventId(ascendc_host::Pipe::kM, ascendc_host::Pipe::kMte1, id);
        }
    }

    void Drain()
    {
        for (const auto& buffers : queues_) ascendc_host::DrainQueue(*buffers, kInsideTPipe);
        queues_.clear();
        bufferCount_ = 0;
    }

    void CheckBuffers(uint32_t count, uint32_t bytes, Where where)
    {
        bufferCount_ += count;
        if (count > 0 && bytes > 0 && bufferCount_ <= ascendc_host::kMaxBuffers) return;
        ascendc_host::Core::Current().Fault(
            ascendc_host::Check::kParameter, where, "InitBuffer",
            std::to_string(count) + " buffers of " + std::to_string(bytes) + " bytes, " + std::to_string(bufferCount_) +
                " buffers in all",
            "ask for at least one byte and one buffer, and for at most 64 buffers in a TPipe");
    }

    static uint32_t Allocate(uint32_t bytes, TPosition position, Where where)
    {
        const uint32_t rounded = AlignUp(bytes, ONE_BLK_SIZE);
        return ascendc_host::Core::Current().AllocateLocal(ascendc_host::MemoryOf(position), rounded,
                                                           ascendc_host::PositionName(position), where);
    }

    std::vector<std::shared_ptr<ascendc_host::QueueBuffers>> queues_;
    uint32_t bufferCount_ = 0;
    bool destroyed_ = false;
};

}  // namespace AscendC

inline AscendC::TPipe* GetTPipePtr() { return ascendc_host::CurrentTPipe(); }
