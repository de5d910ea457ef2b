// Replays instructions of a cube core that a vendor's function asks for; see replay.cpp for those of a vector core.
#include "../kernels/api_cube.h"
#include "steps.h"

using namespace harness;

constexpr uint32_t kOutsideBytes = 96 * 1024;

// As cube.CubeCore.call lays it out.
struct Step {
    uint64_t name, dst, src0, src1;
    uint64_t p[8];
};

class CubeReplay {
public:
    __aicore__ inline explicit CubeReplay(GM_ADDR outside) : outside_(outside)
    {
        pipe_.InitBuffer(l1_, 64 * 1024);
        pipe_.InitBuffer(l0a_, 32 * 1024);
        pipe_.InitBuffer(l0b_, 32 * 1024);
        pipe_.InitBuffer(l0c_, 64 * 1024);
    }

    __aicore__ inline void Run(const Step& step)
    {
        if (!Copies(step) && !Multiplies(step)) throw std::runtime_error("no Ascend C call for the intrinsic");
        PipeBarrier<PIPE_ALL>();
    }

private:
    template <typename T>
    __aicore__ inline GlobalTensor<T> Outside(uint64_t address)
    {
        GlobalTensor<T> tensor;
        tensor.SetGlobalBuffer((__gm__ T*)(outside_ + address), (kOutsideBytes - address) / sizeof(T));
        return tensor;
    }

    template <typename T, typename Buffer>
    __aicore__ inline LocalTensor<T> At(Buffer& buffer, uint64_t address)
    {
        return buffer.template Get<T>()[static_cast<uint32_t>(address / sizeof(T))];
    }

#define FOR_TYPE(name, type)                                                                   \
    case Name("MOV.OUT.TO.L1.MULTI.ND2NZ." name):                                              \
        DataCopy(At<type>(l1_, s.dst), Outside<type>(s.src0),                                  \
                 Nd2NzParams(s.p[0], s.p[1], s.p[2], s.p[3], s.p[4], s.p[5], s.p[6], s.p[7])); \
        return true;                                                                           \
    case Name("LOAD.L1.TO.L0A.2D.V220." name ".addr"):                                         \
        LoadData(At<type>(l0a_, s.dst), At<type>(l1_, s.src0),                                 \
                 LoadData2DParams(s.p[0], s.p[1], s.p[2], 0, s.p[3], false, 0));               \
        return true;                                                                           \
    case Name("LOAD.L1.TO.L0B.2D.V220." name ".addr"):                                         \
        LoadData(At<type>(l0b_, s.dst), At<type>(l1_, s.src0),                                 \
                 LoadData2DParams(s.p[0], s.p[1], s.p[2], 0, s.p[3], false, 0));               \
        return true;                                                                           \
    case Name("LOAD.L1.TO.L0A.3DV2." name):                                                    \
        LoadData(At<type>(l0a_, s.dst), At<type>(l1_, s.src0),                                 \
                 LoadData2DParams(0, s.p[0] * sizeof(type) / 32, 1, 0, 0, false, 0));          \
        return true;

    __aicore__ inline bool Copies(const Step& s)
    {
        switch (s.name) {
            FOR_TYPE("f16", half)
            FOR_TYPE("s8", int8_t)
        }
        return false;
    }

#define MULTIPLY(name, type, Result)                                                  \
    case Name("MAD." name):                                                           \
        Mmad(At<Result>(l0c_, s.dst), At<type>(l0a_, s.src0), At<type>(l0b_, s.src1), \
             MmadParams(s.p[0], s.p[2], s.p[1], 0, false, s.p[3] != 0));              \
        return true;
#define TO_ROWS(name, Result)                                                                             \
    case Name("FIX.L0C.TO.OUT." name):                                                                    \
        Fixpipe<Result, Result, CFG_ROW_MAJOR>(Outside<Result>(s.dst), At<Result>(l0c_, s.src0),          \
                                               FixpipeParamsV220(s.p[0], s.p[1], s.p[3], s.p[2], false)); \
        return true;

    __aicore__ inline bool Multiplies(const Step& s)
    {
        switch (s.name) {
            MULTIPLY("f162f32", half, float)
            MULTIPLY("s8", int8_t, int32_t)
            TO_ROWS("f32", float)
            TO_ROWS("s32", int32_t)
        }
        return false;
    }

    TPipe pipe_;
    TBuf<TPosition::A1> l1_;
    TBuf<TPosition::A2> l0a_;
    TBuf<TPosition::B2> l0b_;
    TBuf<TPosition::CO1> l0c_;
    GM_ADDR outside_;
};

extern "C" __global__ __aicore__ void replay_cube(GM_ADDR outside, GM_ADDR steps, GM_ADDR count)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    CubeReplay replay(outside);
    ForEachStep<Step>(steps, count, [&](const Step& step) { replay.Run(step); });
}
