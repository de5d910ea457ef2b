// Replays instructions that a vendor's function asks for: addresses, strides, masks and scalars of each are data.
// An instruction goes by the name of the compiler's intrinsic; each case makes the one Ascend C call that stands for
// it.
#include "../kernels/api_harness.h"
#include "steps.h"

using namespace harness;

constexpr uint32_t kImageBytes = 96 * 1024;

// As replay.Step lays it out.
struct Step {
    uint64_t name, dst, src0, src1, scalar, maskLow, maskHigh, counter, repeat, dstBlock, src0Block, src1Block,
        dstRepeat, src0Repeat, src1Repeat, mode, selection;
};
class Replay {
public:
    __aicore__ inline Replay(const LocalTensor<uint8_t>& ub, const LocalTensor<uint8_t>& bits,
                             const LocalTensor<int64_t>& kept, GM_ADDR outside, const Step& step)
        : ub_(ub), bits_(bits), kept_(kept), outside_(outside), s_(step)
    {}

    __aicore__ inline void Run()
    {
        SetMask();
        if (!Elementwise() && !WithScalar() && !Converts() && !Moves() && !Copies() && !Reduces() && !Compares()) {
            throw std::runtime_error("no Ascend C call for the intrinsic");
        }
        PipeBarrier<PIPE_ALL>();
        SetMaskNorm();
        ResetMask();
    }

private:
    template <typename T>
    __aicore__ inline LocalTensor<T> At(uint64_t address)
    {
        return ub_.ReinterpretCast<T>()[static_cast<uint32_t>(address / sizeof(T))];
    }

    template <typename T>
    __aicore__ inline T Scalar()
    {
        T value;
        __builtin_memcpy(&value, &s_.scalar, sizeof(T));
        return value;
    }

    __aicore__ inline void SetMask()
    {
        if (s_.counter != 0) {
            SetMaskCount();
            SetVectorMask<float, MaskMode::COUNTER>(0, s_.maskLow);
        } else {
            SetMaskNorm();
            SetVectorMask<float, MaskMode::NORMAL>(s_.maskHigh, s_.maskLow);
        }
    }

    __aicore__ inline BinaryRepeatParams Binary()
    {
        return BinaryRepeatParams(s_.dstBlock, s_.src0Block, s_.src1Block, s_.dstRepeat, s_.src0Repeat, s_.src1Repeat);
    }
    __aicore__ inline UnaryRepeatParams Unary()
    {
        return UnaryRepeatParams(s_.dstBlock, s_.src0Block, s_.dstRepeat, s_.src0Repeat);
    }

#define BINARY(name, type, Call)                                                                                     \
    case Name(name):                                                                                                 \
        Call<type, false>(At<type>(s_.dst), At<type>(s_.src0), At<type>(s_.src1), uint64_t{0}, s_.repeat, Binary()); \
        return true;
#define UNARY(name, type, Call)                                                                  \
    case Name(name):                                                                             \
        Call<type, false>(At<type>(s_.dst), At<type>(s_.src0), uint64_t{0}, s_.repeat, Unary()); \
        return true;
#define SCALAR(name, type, Call)                                                                                 \
    case Name(name):                                                                                             \
        Call<type, false>(At<type>(s_.dst), At<type>(s_.src0), Scalar<type>(), uint64_t{0}, s_.repeat, Unary()); \
        return true;
#define FLOATS(KIND, name, Call) KIND(name ".f32", float, Call) KIND(name ".f16", half, Call)
#define NUMBERS(KIND, name, Call) \
    FLOATS(KIND, name, Call) KIND(name ".s32", int32_t, Call) KIND(name ".s16", int16_t, Call)

    __aicore__ inline bool Elementwise()
    {
        switch (s_.name) {
            NUMBERS(BINARY, "VADD", Add)
            NUMBERS(BINARY, "VSUB", Sub)
            NUMBERS(BINARY, "VMUL", Mul)
            NUMBERS(BINARY, "VMAX", Max)
            NUMBERS(BINARY, "VMIN", Min)
            FLOATS(BINARY, "VDIV", Div)
            BINARY("VAND.s16", int16_t, And)
            BINARY("VOR.s16", int16_t, Or)
            FLOATS(UNARY, "VEXP", Exp)
            FLOATS(UNARY, "VLN", Ln)
            FLOATS(UNARY, "VABS", Abs)
        }
        return false;
    }

    __aicore__ inline bool WithScalar()
    {
        switch (s_.name) {
            NUMBERS(SCALAR, "VADDS", Adds)
            NUMBERS(SCALAR, "VMULS", Muls)
            NUMBERS(SCALAR, "VMAXS", Maxs)
            NUMBERS(SCALAR, "VMINS", Mins)
        }
        return false;
    }

#define CAST(name, To, From, round)                                                                                  \
    case Name("VCONV." name ".v220"):                                                                                \
        Cast<To, From, false>(At<To>(s_.dst), At<From>(s_.src0), RoundMode::round, uint64_t{0}, s_.repeat, Unary()); \
        return true;
#define CAST_ROUNDED(name, To, From)     \
    CAST(name "r", To, From, CAST_RINT)  \
    CAST(name "a", To, From, CAST_ROUND) \
    CAST(name "f", To, From, CAST_FLOOR) \
    CAST(name "c", To, From, CAST_CEIL)  \
    CAST(name "z", To, From, CAST_TRUNC)

    __aicore__ inline bool Converts()
    {
        switch (s_.name) {
            CAST("f322f16r", half, float, CAST_RINT)
            CAST("f322bf16r", bfloat16_t, float, CAST_RINT)
            CAST_ROUNDED("f322s32", int32_t, float)
            CAST_ROUNDED("f162s8", int8_t, half)
            CAST_ROUNDED("f162s32", int32_t, half)
            CAST_ROUNDED("s322f32", float, int32_t)
            CAST("f162f32", float, half, CAST_NONE)
            CAST("bf162f32", float, bfloat16_t, CAST_NONE)
            CAST("s82f16", half, int8_t, CAST_NONE)
        }
        return false;
    }

#define DUPLICATE(name, type)                                                                                        \
    case Name("MOVEV." name):                                                                                        \
        Duplicate<type, false>(At<type>(s_.dst), Scalar<type>(), uint64_t{0}, s_.repeat, s_.dstBlock, s_.dstRepeat); \
        return true;
#define BRCB(name, type)                                                                                   \
    case Name("VBRCB." name):                                                                              \
        Brcb(At<type>(s_.dst), At<type>(s_.src0), s_.repeat, BrcbRepeatParams(s_.dstBlock, s_.dstRepeat)); \
        return true;
// The library's broadcasts end with copies, for which the host model has no call: sums with 0, repeat by repeat, since
// in counter mode each repeat of a copy has the count.
#define COPY(name, type)       \
    case Name("VCOPY." name):  \
        CopiesRepeats<type>(); \
        return true;
#define GATHER_MASK(name, type)                                        \
    case Name("VREDUCEv2." name):                                      \
        if (s_.mode != 0) throw std::runtime_error("a fixed pattern"); \
        GathersMask<type>();                                           \
        return true;
// The compiler's offsets are addresses, so the source is the whole buffer.
#define GATHER(name, type)                                                                           \
    case Name("VGATHER." name):                                                                      \
        SetMaskNorm();                                                                               \
        Gather(At<type>(s_.dst), At<type>(0), At<uint32_t>(s_.src0), static_cast<uint32_t>(s_.mode), \
               static_cast<uint32_t>(s_.maskLow));                                                   \
        return true;

    template <typename T>
    __aicore__ inline void CopiesRepeats()
    {
        const UnaryRepeatParams strides(s_.dstBlock, s_.src0Block, 8 * s_.dstBlock, 8 * s_.src0Block);
        for (uint64_t repeat = 0; repeat < s_.repeat; ++repeat) {
            Adds<T, false>(At<T>(s_.dst + repeat * s_.dstRepeat * 32), At<T>(s_.src0 + repeat * s_.src0Repeat * 32),
                           T{0}, uint64_t{0}, 1, strides);
            PipeBarrier<PIPE_ALL>();
        }
    }

    template <typename T>
    __aicore__ inline void GathersMask()
    {
        uint64_t unfinished = 0;
        GatherMask(At<T>(s_.dst), At<T>(s_.src0), At<T>(s_.src1), s_.counter != 0,
                   static_cast<uint32_t>(s_.counter != 0 ? s_.maskLow : 0),
                   GatherMaskParams(s_.src0Block, s_.repeat, s_.src0Repeat, s_.src1Repeat), unfinished);
        PipeBarrier<PIPE_ALL>();
        kept_.SetValue(0, GetGatherMaskRemainCount());
    }

    __aicore__ inline bool Moves()
    {
        switch (s_.name) {
            DUPLICATE("f32", float)
            DUPLICATE("f16", half)
            DUPLICATE("s32", int32_t)
            DUPLICATE("s16", int16_t)
            BRCB("b32", uint32_t)
            BRCB("b16", uint16_t)
            COPY("u32", int32_t)
            COPY("u16", int16_t)
            GATHER_MASK("b32", uint32_t)
            GATHER_MASK("b16", uint16_t)
            GATHER("b32", uint32_t)
            GATHER("b16", uint16_t)
        }
        return false;
    }

#define COPY_GLOBAL(name, type)                                                                        \
    case Name("MOV.OUT.TO.UB.ALIGN." name ".V220"):                                                    \
        DataCopyPad(At<type>(s_.dst), Outside<type>(s_.src0), Pieces(), DataCopyPadExtParams<type>()); \
        return true;                                                                                   \
    case Name("MOV.UB.TO.OUT.ALIGN." name ".V220"):                                                    \
        DataCopyPad(Outside<type>(s_.dst), At<type>(s_.src0), Pieces());                               \
        return true;

    template <typename T>
    __aicore__ inline GlobalTensor<T> Outside(uint64_t address)
    {
        GlobalTensor<T> tensor;
        tensor.SetGlobalBuffer((__gm__ T*)(outside_ + address), (kImageBytes - address) / sizeof(T));
        return tensor;
    }

    __aicore__ inline DataCopyExtParams Pieces()
    {
        return DataCopyExtParams(s_.repeat, s_.src0Block, s_.src0Repeat, s_.dstRepeat, 0);
    }

    __aicore__ inline bool Copies()
    {
        switch (s_.name) {
            COPY_GLOBAL("b16", half)
            COPY_GLOBAL("b32", float)
            case Name("MOV.UB.TO.UB.v220"):
                DataCopy(At<half>(s_.dst), At<half>(s_.src0),
                         DataCopyParams(s_.repeat, s_.src0Block, s_.src0Repeat, s_.dstRepeat));
                return true;
        }
        return false;
    }

#define REDUCE(name, type, Call, ...)                                                                           \
    case Name(name):                                                                                            \
        Call<type, false>(At<type>(s_.dst), At<type>(s_.src0), __VA_ARGS__, static_cast<int32_t>(s_.dstRepeat), \
                          static_cast<int32_t>(s_.src0Block), static_cast<int32_t>(s_.src0Repeat));             \
        return true;
#define EXTREME(name, type, Call)                                                                  \
    case Name(name):                                                                               \
        Call<type, false>(At<type>(s_.dst), At<type>(s_.src0), 0, static_cast<int32_t>(s_.repeat), \
                          static_cast<int32_t>(s_.dstRepeat), static_cast<int32_t>(s_.src0Block),  \
                          static_cast<int32_t>(s_.src0Repeat), static_cast<ReduceOrder>(s_.mode)); \
        return true;

    __aicore__ inline bool Reduces()
    {
        const int32_t repeat = static_cast<int32_t>(s_.repeat);
        switch (s_.name) {
            REDUCE("VCADD.f32.order", float, WholeReduceSum, 0, repeat)
            REDUCE("VCADD.f16.order", half, WholeReduceSum, 0, repeat)
            REDUCE("VCGADD.f32", float, BlockReduceSum, repeat, 0)
            REDUCE("VCGADD.f16", half, BlockReduceSum, repeat, 0)
            REDUCE("VCGMAX.f32", float, BlockReduceMax, repeat, 0)
            REDUCE("VCGMAX.f16", half, BlockReduceMax, repeat, 0)
            REDUCE("VCPADD.f32", float, PairReduceSum, repeat, 0)
            REDUCE("VCPADD.f16", half, PairReduceSum, repeat, 0)
            EXTREME("VCMAX.f32.order.v220", float, WholeReduceMax)
            EXTREME("VCMAX.f16.order.v220", half, WholeReduceMax)
        }
        return false;
    }

#define COMPARE(name, type, mode)                                                                                  \
    case Name("VCMPVS." #mode "." name):                                                                           \
        CompareScalar<type, uint8_t, false>(At<uint8_t>(s_.dst), At<type>(s_.src0), Scalar<type>(), CMPMODE::mode, \
                                            uint64_t{0}, s_.repeat, Unary());                                      \
        return true;
#define COMPARE_FLOATS(mode) COMPARE("f32", float, mode) COMPARE("f16", half, mode)

    __aicore__ inline bool Compares()
    {
        switch (s_.name) {
            COMPARE_FLOATS(LT)
            COMPARE_FLOATS(GT)
            COMPARE_FLOATS(LE)
            COMPARE_FLOATS(GE)
            COMPARE_FLOATS(EQ)
            COMPARE_FLOATS(NE)
            case Name("VSEL.f32.1"):
                Selects<float>();
                return true;
            case Name("VSEL.f16.1"):
                Selects<half>();
                return true;
        }
        return false;
    }

    // The call with strides has no counter mode: whole repeats, then the rest, whose bits have to begin a block.
    template <typename T>
    __aicore__ inline void Selects()
    {
        constexpr uint32_t lanes = 256 / sizeof(T);
        const uint32_t whole = static_cast<uint32_t>(s_.maskLow) / lanes;
        const uint32_t rest = static_cast<uint32_t>(s_.maskLow) % lanes;
        SetMaskNorm();
        if (whole != 0) SelectRepeats<T>(0, lanes, whole, At<uint8_t>(s_.selection));
        if (rest == 0) return;
        for (uint32_t byte = 0; byte < lanes / 8; ++byte) {
            bits_.SetValue(byte, At<uint8_t>(s_.selection).GetValue(whole * lanes / 8 + byte));
        }
        PipeBarrier<PIPE_ALL>();
        SelectRepeats<T>(whole, rest, 1, bits_);
    }

    template <typename T>
    __aicore__ inline void SelectRepeats(uint32_t first, uint32_t lanes, uint32_t repeats,
                                         const LocalTensor<uint8_t>& bits)
    {
        Select(At<T>(s_.dst + first * s_.dstRepeat * 32), bits, At<T>(s_.src0 + first * s_.src0Repeat * 32),
               At<T>(s_.src1 + first * s_.src1Repeat * 32), SELMODE::VSEL_TENSOR_TENSOR_MODE, uint64_t{lanes},
               static_cast<uint8_t>(repeats), Binary());
        PipeBarrier<PIPE_ALL>();
    }

    LocalTensor<uint8_t> ub_;
    LocalTensor<uint8_t> bits_;
    LocalTensor<int64_t> kept_;
    GM_ADDR outside_;
    const Step& s_;
};

extern "C" __global__ __aicore__ void replay(GM_ADDR image, GM_ADDR outside, GM_ADDR steps, GM_ADDR count,
                                             GM_ADDR keptCount)
{
    Bench bench;
    LocalTensor<uint8_t> ub = bench.Load<uint8_t>(image, kImageBytes);
    LocalTensor<uint8_t> bits = bench.Make<uint8_t>(32);
    LocalTensor<int64_t> kept = bench.Filled<int32_t>(8, 0).ReinterpretCast<int64_t>();
    ForEachStep<Step>(steps, count, [&](const Step& step) { Replay(ub, bits, kept, outside, step).Run(); });
    bench.Store(image, ub, kImageBytes);
    bench.Store(keptCount, kept, 4);
}
