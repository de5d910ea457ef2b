// Entry of the operator TopThetaIncrementalAttention. The build compiles it once for each combination of dtypes.
#include "cube_scores.h"
#include "incremental_attention_kernel.h"
// for the wrapper that the operator build writes around a kernel with cube cores
#include "lib/matmul_intf.h"

namespace toptheta {

using Types = CallTypes<DTYPE_QUERY, DTYPE_KEY, DTYPE_VALUE>;
using TokenTypes = CallTypes<DTYPE_QUERY, DTYPE_KEY, DTYPE_VALUE, true>;

// As much of the tiling data as a call of these dtypes needs.
template <typename K>
struct TilingOf {
    using Type = TilingData;
};
template <>
struct TilingOf<int8_t> {
    using Type = TopThetaIncrementalAttentionTilingData;
};
using CallTiling = TilingOf<DTYPE_KEY>::Type;

TOPTHETA_DEVICE inline const TilingData* CallOf(const TilingData* tiling) { return tiling; }
TOPTHETA_DEVICE inline const TilingData* CallOf(const TopThetaIncrementalAttentionTilingData* tiling)
{
    return &tiling->call;
}
TOPTHETA_DEVICE inline const TopThetaIncrementalAttentionTilingData* ScalesOf(const TilingData*) { return nullptr; }
TOPTHETA_DEVICE inline const TopThetaIncrementalAttentionTilingData* ScalesOf(
    const TopThetaIncrementalAttentionTilingData* tiling)
{
    return tiling;
}

// One vector core of a launch. `kSplit`: cores meet.
template <template <typename> class Pipeline, Placement kPlacement, bool kSplit, typename Types = toptheta::Types>
TOPTHETA_DEVICE inline void RunVectorCore(AscendC::TPipe* pipe, const TilingData* tiling, const KernelTensors& tensors,
                                          GM_ADDR workspace)
{
    IncrementalAttentionKernel<Types, Pipeline, kPlacement> kernel;
    kernel.Init(pipe, tiling, tensors, workspace);
    kernel.template Process<kSplit>();
}

// A cube core, which works for two of them.
template <typename Types>
TOPTHETA_DEVICE inline void RunCubeCore(AscendC::TPipe* pipe, const TilingData* tiling, const KernelTensors& tensors,
                                        GM_ADDR workspace)
{
    CubeScores<Types> kernel;
    kernel.Init(pipe, tiling, tensors, workspace);
    kernel.Process();
}

// Asks for all cache lines of the tiling data at once. A build for one shape has constants instead, and no pointer.
TOPTHETA_DEVICE inline void PreloadTiling(GM_ADDR tiling)
{
    if (tiling != nullptr) {
        GlobalTensor<uint64_t> lines;
        lines.SetGlobalBuffer(reinterpret_cast<__gm__ uint64_t*>(tiling));
        for (uint32_t at = 0; at < sizeof(CallTiling); at += sizeof(TilingData) / 2) {
            AscendC::DataCachePreload(lines, static_cast<int64_t>(at));
        }
    }
}

}  // namespace toptheta

extern "C" __global__ __aicore__ void top_theta_incremental_attention(
    GM_ADDR query, GM_ADDR key, GM_ADDR value, GM_ADDR threshold, GM_ADDR actual_seq_lengths, GM_ADDR key_start,
    GM_ADDR block_table, GM_ADDR key_antiquant_scale, GM_ADDR value_antiquant_scale, GM_ADDR actual_query_lengths,
    GM_ADDR discarded_mass, GM_ADDR value_mean, GM_ADDR learnable_sink, GM_ADDR row_lse, GM_ADDR attention_out,
    GM_ADDR lse, GM_ADDR kept, GM_ADDR value_rows, GM_ADDR part_out, GM_ADDR part_maximum, GM_ADDR part_kept_mass,
    GM_ADDR part_discarded_mass, GM_ADDR workspace, GM_ADDR tiling)
{
    REGISTER_TILING_DEFAULT(toptheta::TopThetaIncrementalAttentionTilingData);
#ifdef COPY_TILING_WITH_STRUCT
    // through the data cache of the scalar unit; otherwise a vector core waits for a DMA into the UB
    toptheta::PreloadTiling(tiling);
    GET_TILING_DATA_PTR_WITH_STRUCT(toptheta::TopThetaIncrementalAttentionTilingData, tilingInGm, tiling);
    COPY_TILING_WITH_STRUCT(toptheta::CallTiling, tilingInGm, copied);
#else
    GET_TILING_DATA_WITH_STRUCT(toptheta::CallTiling, tilingInUb, tiling);
    const toptheta::CallTiling* copied = &tilingInUb;
#endif
    const toptheta::TilingData* tilingData = toptheta::CallOf(copied);
    KERNEL_TASK_TYPE(TOPTHETA_KEY_WHOLE, KERNEL_TYPE_AIV_ONLY);
    KERNEL_TASK_TYPE(TOPTHETA_KEY_SPLIT, KERNEL_TYPE_MIX_AIV_1_0);
    KERNEL_TASK_TYPE(TOPTHETA_KEY_CUBE, KERNEL_TYPE_MIX_AIC_1_2);
    KERNEL_TASK_TYPE(TOPTHETA_KEY_CUBE_TOKENS, KERNEL_TYPE_MIX_AIC_1_2);
    KERNEL_TASK_TYPE(TOPTHETA_KEY_WHOLE_POST_SOFTMAX, KERNEL_TYPE_AIV_ONLY);
    KERNEL_TASK_TYPE(TOPTHETA_KEY_SPLIT_POST_SOFTMAX, KERNEL_TYPE_MIX_AIV_1_0);
    KERNEL_TASK_TYPE(TOPTHETA_KEY_CUBE_POST_SOFTMAX, KERNEL_TYPE_MIX_AIC_1_2);
    const toptheta::KernelTensors tensors = {
        key,
        value,
        key_antiquant_scale,
        value_antiquant_scale,
        {actual_seq_lengths, key_start, actual_query_lengths},
        block_table,
        {query, threshold, discarded_mass, value_mean, learnable_sink, row_lse},
        {attention_out, lse, kept, value_rows, part_out, part_maximum, part_kept_mass, part_discarded_mass},
        toptheta::ScalesOf(copied)};
    GM_ADDR userWorkspace = AscendC::GetUserWorkspace(workspace);
    AscendC::TPipe pipe;
    if ASCEND_IS_AIC {
        if (TILING_KEY_IS(TOPTHETA_KEY_CUBE) || TILING_KEY_IS(TOPTHETA_KEY_CUBE_POST_SOFTMAX)) {
            toptheta::RunCubeCore<toptheta::Types>(&pipe, tilingData, tensors, userWorkspace);
        } else if (TILING_KEY_IS(TOPTHETA_KEY_CUBE_TOKENS)) {
            toptheta::RunCubeCore<toptheta::TokenTypes>(&pipe, tilingData, tensors, userWorkspace);
        }
    }
    if ASCEND_IS_AIV {
        using toptheta::ChunkPipeline;
        using toptheta::CubeChunkPipeline;
        using toptheta::kPostSoftmax;
        using toptheta::kPreSoftmax;
        using toptheta::RunVectorCore;
        if (TILING_KEY_IS(TOPTHETA_KEY_WHOLE)) {
            RunVectorCore<ChunkPipeline, kPreSoftmax, false>(&pipe, tilingData, tensors, userWorkspace);
        } else if (TILING_KEY_IS(TOPTHETA_KEY_SPLIT)) {
            RunVectorCore<ChunkPipeline, kPreSoftmax, true>(&pipe, tilingData, tensors, userWorkspace);
        } else if (TILING_KEY_IS(TOPTHETA_KEY_CUBE)) {
            RunVectorCore<CubeChunkPipeline, kPreSoftmax, true>(&pipe, tilingData, tensors, userWorkspace);
        } else if (TILING_KEY_IS(TOPTHETA_KEY_CUBE_TOKENS)) {
            RunVectorCore<CubeChunkPipeline, kPreSoftmax, true, toptheta::TokenTypes>(&pipe, tilingData, tensors,
                                                                                      userWorkspace);
        } else if (TILING_KEY_IS(TOPTHETA_KEY_WHOLE_POST_SOFTMAX)) {
            RunVectorCore<ChunkPipeline, kPostSoftmax, false>(&pipe, tilingData, tensors, userWorkspace);
        } else if (TILING_KEY_IS(TOPTHETA_KEY_SPLIT_POST_SOFTMAX)) {
            RunVectorCore<ChunkPipeline, kPostSoftmax, true>(&pipe, tilingData, tensors, userWorkspace);
        } else if (TILING_KEY_IS(TOPTHETA_KEY_CUBE_POST_SOFTMAX)) {
            RunVectorCore<CubeChunkPipeline, kPostSoftmax, true>(&pipe, tilingData, tensors, userWorkspace);
        }
    }
}
