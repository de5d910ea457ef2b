// The kernel for bfloat16 on the CPU, compared with the same step in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "../op_host/tiling_call.h"
#include "tikicpulib.h"

extern "C" __global__ __aicore__ void top_theta_incremental_attention(
    GM_ADDR query, GM_ADDR key, GM_ADDR value, GM_ADDR threshold, GM_ADDR actual_seq_lengths, GM_ADDR key_start,
    GM_ADDR block_table, GM_ADDR key_antiquant_scale, GM_ADDR value_antiquant_scale, GM_ADDR actual_query_lengths,
    GM_ADDR discarded_mass, GM_ADDR value_mean, GM_ADDR learnable_sink, GM_ADDR row_lse, GM_ADDR attention_out,
    GM_ADDR lse, GM_ADDR kept, GM_ADDR value_rows, GM_ADDR part_out, GM_ADDR part_maximum, GM_ADDR part_kept_mass,
    GM_ADDR part_discarded_mass, GM_ADDR workspace, GM_ADDR tiling);

namespace toptheta_ut {
namespace {

constexpr float kThreshold = 1.0F;

// An array in global memory.
template <typename T>
class Memory {
public:
    explicit Memory(int64_t count)
        : count_(count), data_(static_cast<T*>(AscendC::GmAlloc(static_cast<uint64_t>(count) * sizeof(T))))
    {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { AscendC::GmFree(data_); }

    T& operator[](int64_t index) { return data_[index]; }
    int64_t Size() const { return count_; }
    uint8_t* Address() { return reinterpret_cast<uint8_t*>(data_); }

private:
    int64_t count_;
    T* data_;
};

double ToDouble(uint16_t bfloat16)
{
    const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

void FillAtRandom(Memory<uint16_t>& memory, uint32_t seed)
{
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < memory.Size(); i++) {
        const float number = normal(generator);
        uint32_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        memory[i] = static_cast<uint16_t>(bits >> 16);
    }
}

// One step with statistics: its tensors, the kernel, and a row of it in double precision.
struct Step {
    explicit Step(const Shape& sizes)
        : shape(sizes),
          query(sizes.batch * sizes.Heads() * sizes.headDim),
          key(sizes.batch * sizes.keyValueHeads * sizes.rows * sizes.headDim),
          value(key.Size()),
          threshold(sizes.batch * sizes.Heads()),
          lengths(sizes.batch),
          out(query.Size()),
          lse(threshold.Size()),
          kept(threshold.Size()),
          valueRows(sizes.batch * sizes.keyValueHeads)
    {
        FillAtRandom(query, 0);
        FillAtRandom(key, 1);
        FillAtRandom(value, 2);
        for (int64_t row = 0; row < threshold.Size(); row++) {
            threshold[row] = kThreshold;
        }
        for (int64_t sequence = 0; sequence < sizes.batch; sequence++) {
            lengths[sequence] = static_cast<int32_t>(sizes.rows - 77 * sequence);
        }
    }

    void Run(uint64_t expectedKey, bool withLengths)
    {
        Arguments call = MakeCall(shape);
        call.withStats = true;
        if (withLengths) {
            GiveLengths(call);
        }
        const Result result = Tile(call);
        ASSERT_EQ(result.error.message, "");
        ASSERT_EQ(result.tiling.key, expectedKey);
        Memory<toptheta::TopThetaIncrementalAttentionTilingData> tiling(1);
        tiling[0] = result.tiling.data;
        Memory<uint8_t> workspace(static_cast<int64_t>(result.tiling.workspaceBytes - kSystemBytes) + 1);
        AscendC::SetKernelMode(KernelMode::MIX_MODE);
        ICPU_SET_TILING_KEY(result.tiling.key);
        ICPU_RUN_KF(top_theta_incremental_attention, result.tiling.blockDim, query.Address(), key.Address(),
                    value.Address(), threshold.Address(), withLengths ? lengths.Address() : nullptr, nullptr, nullptr,
                    nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, out.Address(), lse.Address(),
                    kept.Address(), valueRows.Address(), nullptr, nullptr, nullptr, nullptr, workspace.Address(),
                    tiling.Address());
    }

    void ExpectRow(int64_t row, int64_t length)
    {
        const int64_t pair = row / shape.group;
        double all = 0.0;
        int32_t passed = 0;
        std::vector<double> sums(static_cast<size_t>(shape.headDim), 0.0);
        for (int64_t first = pair * shape.rows * shape.headDim, last = first + length * shape.headDim; first < last;
             first += shape.headDim) {
            double score = 0.0;
            for (int64_t i = 0; i < shape.headDim; i++) {
                score += 0.125 * ToDouble(query[row * shape.headDim + i]) * ToDouble(key[first + i]);
            }
            all += std::exp(score);
            passed += score > kThreshold ? 1 : 0;
            for (int64_t i = 0; i < shape.headDim && score > kThreshold; i++) {
                sums[static_cast<size_t>(i)] += std::exp(score) * ToDouble(value[first + i]);
            }
        }
        EXPECT_EQ(kept[row], passed) << "row " << row;
        EXPECT_NEAR(lse[row], std::log(all), 1e-4) << "row " << row;
        for (int64_t i = 0; i < shape.headDim; i++) {
            EXPECT_NEAR(ToDouble(out[row * shape.headDim + i]), sums[static_cast<size_t>(i)] / all, 4e-3)
                << "row " << row << ", column " << i;  // of 8 bits, and below 1
        }
    }

    Shape shape;
    Memory<uint16_t> query, key, value;
    Memory<float> threshold;
    Memory<int32_t> lengths;
    Memory<uint16_t> out;
    Memory<float> lse;
    Memory<int32_t> kept, valueRows;
};

TEST(TopThetaIncrementalAttentionKernel, WholeUnitsOnVectorCores)
{
    Step step({2, 2, 1, 64, 256, "BNSD", ElementType::kBfloat16});
    step.Run(TOPTHETA_KEY_WHOLE, false);
    for (int64_t row = 0; row < 4; row++) {
        step.ExpectRow(row, 256);
    }
}

TEST(TopThetaIncrementalAttentionKernel, GroupsAndLengthsWithCubeCores)
{
    Step step({2, 2, 4, 64, 300, "BNSD", ElementType::kBfloat16});
    step.Run(TOPTHETA_KEY_CUBE, true);
    for (int64_t row = 0; row < 16; row++) {
        step.ExpectRow(row, step.lengths[row / 8]);
    }
}

}  // namespace
}  // namespace toptheta_ut
