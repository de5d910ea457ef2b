"""The points to confirm on a device, in the order of docs/ascend.md, "Confirm first on hardware"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import TopThetaValueError, nearest
from . import cube_checks as cube
from . import launch_checks as launch
from . import token_checks as tokens
from . import vector_checks as vector


@dataclass(frozen=True)
class Point:
    """One reading of documents or of public source, and the call that shows whether it is right.

    Attributes:
        name: what ``--only`` takes.
        reading: what we take for granted.
        document: where it comes from; "docs" is docs/zh of asc-devkit.
        change: what to change, and in which file, if it is wrong.
        run: makes the calls on a device, and raises what is wrong.
    """

    name: str
    reading: str
    document: str
    change: str
    run: Callable[[str], None]


POINTS: tuple[Point, ...] = (
    Point(
        "mask-bits", "bit i of byte j of a compare mask belongs to element 8 j + i",
        "docs, Compare, CompareScalar and GatherMask",
        "op_kernel/chunk_selection.h, MakeList: reverse the bits of the masks before Compact and Select use them",
        vector.mask_bits,
    ),
    Point(
        "gather-count", "after a V_S flag the register holds how many elements GatherMask has kept",
        "docs, GatherMask and GetGatherMaskRemainCount",
        "op_kernel/chunk_selection.h, Count: take the count from a ReduceSum of the mask",
        vector.gather_count,
    ),
    Point(
        "launch-forms", "KERNEL_TYPE_AIV_ONLY, MIX_AIV_1_0 and MIX_AIC_1_2 start from one binary",
        "docs, KERNEL_TASK_TYPE; ascendc_compile_v220.py of the toolkit",
        "op_kernel/top_theta_incremental_attention.cpp: put KERNEL_TYPE_MIX_AIV_1_0 in place of AIV_ONLY",
        launch.launch_forms,
    ),
    Point(
        "dtypes", "the binary follows the dtypes of the query and of the lengths",
        "docs, operator definitions (DataType lists are columns)",
        "op_host/top_theta_incremental_attention_def.cpp: the columns of dtypes",
        launch.dtypes,
    ),
    Point(
        "empty-outputs", "a launch is skipped only if all of its outputs are empty",
        "nnopbase of the open CANN sources",
        "toptheta_npu/npu/adapter.cpp, AddOutput: give outputs that nobody asked for one element",
        launch.empty_outputs,
    ),
    Point(
        "strided-caches", "inputs that are declared IgnoreContiguous arrive as they are, at their first element",
        "docs, IgnoreContiguous; aclCreateTensor",
        "toptheta_npu/npu/adapter.cpp, CacheStrides; op_host/geometry.h: how strides reach the tiling",
        launch.strided_caches,
    ),
    Point(
        "sync-all", "every vector core starts and meets the others at SyncAll in a KERNEL_TYPE_MIX_AIV_1_0 launch",
        "docs, SyncAll and SetScheduleMode",
        "op_kernel/incremental_attention_kernel.h: SyncAll with a workspace (soft); "
        "op_host/tiling_math.h: schedule mode and block_dim",
        launch.sync_all,
    ),
    Point(
        "unified-buffer", "188160 bytes of the Unified Buffer are ours",
        "docs, GetCoreMemSize; platform_config of the toolkit",
        "op_kernel/ub_layout.h: a smaller kUbBudget",
        vector.unified_buffer,
    ),
    Point(
        "wide-gaps", "DataCopyPad skips up to 2^31 - 2 bytes between two rows",
        "docs, DataCopyPad; the limit of the toolkit's own kernels",
        "op_kernel/cache_rows.h: a smaller kMaxGap",
        vector.wide_gaps,
    ),
    Point(
        "select-strides", "Select with strides of 0 reads one block for all lanes",
        "docs, Select (modes with repeats)",
        "op_kernel/running_softmax.h, CountKept: a buffer of ones, read without gaps",
        vector.select_strides,
    ),
    Point(
        "multiply-add", "MulAddDst of half into float rounds nothing to half",
        "docs, MulAddDst",
        "op_kernel/query_key_product.h and weighted_sum.h: cast to float32 before the products, as for bfloat16",
        vector.multiply_add,
    ),
    Point(
        "narrow-cast", "Cast of int8 to half takes four blocks a repeat, each as far from the last as its stride says",
        "docs, Cast (conversions of different widths) and UnaryRepeatParams",
        "op_kernel/query_key_product.h, CastPanel: cast whole rows, and multiply them with the pitch of a row",
        vector.int8_cast,
    ),
    Point(
        "exp-ln", "Exp and Ln are right to 4e-6",
        "docs, Exp and Ln (no accuracy is stated)",
        "op_kernel/running_softmax.h, Exponentiate, and compensation.h: another form of the exponential, "
        "or a tolerance in tests/helpers.py that says how much is lost",
        vector.exp_ln,
    ),
    Point(
        "infinite-bounds", "Maxs and Mins put a finite number in place of an infinity",
        "docs, Maxs and Mins (no word of infinities)",
        "op_kernel/unit_parameters.h, UnpackBounded and MakeLimits: put the numbers in place with the scalar unit",
        vector.infinite_bounds,
    ),
    Point(
        "infinite-scores", "Compare, Max, Sub and Exp take -inf as IEEE 754 says, and Exp of it is 0",
        "docs, Compare, Max, Sub and Exp (no word of infinities)",
        "docs/operator.md: scores of -inf, which only infinities in the caller's query or K make, give some value",
        vector.infinite_scores,
    ),
    Point(
        "lowest-number", "Exp of the lowest finite number is 0, also after a score has been subtracted from it",
        "docs, Exp and Sub; the toolkit's own attention kernels begin with such a number",
        "op_kernel/kernel_common.h: kLowest nearer to 0",
        vector.lowest_number,
    ),
    Point(
        "cube-block-index", "GetBlockIdx of a vector core is 2 * block + sub-block",
        "docs, GetBlockIdx and GetSubBlockIdx",
        "op_kernel/incremental_attention_kernel.h, Init: core_ from GetSubBlockIdx and GetBlockIdx",
        cube.cube_block_index,
    ),
    Point(
        "cube-flags", "a flag of mode 2 reaches the cube core when both of its vector cores have set it",
        "docs, CrossCoreSetFlag and CrossCoreWaitFlag",
        "op_kernel/score_ring.h and cube_scores.h: a flag for each vector core",
        cube.cube_flags,
    ),
    Point(
        "cube-fractals", "DataCopy leaves fractals in L1 in the order in which Mmad reads them",
        "docs, DataCopy with Nd2NzParams, LoadData and Mmad",
        "op_kernel/cube_key_rows.h (strides of the copy) and cube_scores.h, MoveFractals",
        cube.cube_fractals,
    ),
    Point(
        "ragged-fixpipe", "Fixpipe writes mSize rows of nSize elements and nothing beyond",
        "docs, Fixpipe",
        "op_kernel/cube_layout.h, RoundScores: room for 16 rows; score_ring.h: the same pitch",
        cube.ragged_fixpipe,
    ),
    Point(
        "cube-nan", "a NaN in K comes out of Mmad as NaN",
        "docs, Mmad (a mode in which NaN becomes 0)",
        "op_kernel/cube_scores.h: switch the saturation mode off before the first Mmad; "
        "else say in docs/operator.md that NaN in K is lost",
        cube.cube_nan,
    ),
    Point(
        "cube-integers", "Mmad of int8 adds in 32 bits, and its fractals are 32 columns wide",
        "docs, Mmad, LoadData and DataCopy with Nd2NzParams (int8)",
        "op_host/tiling_math.h, UsesCube: not for int8 K, which the vector cores then cast",
        cube.cube_integers,
    ),
    Point(
        "sync-all-cube", "SyncAll of the vector cores works in a KERNEL_TYPE_MIX_AIC_1_2 launch",
        "docs, SyncAll (isAIVOnly)",
        "op_kernel/incremental_attention_kernel.h: SyncAll<false> on both kinds of cores",
        cube.sync_all_cube,
    ),
    Point(
        "query-tokens", "DataCopyPad out of the Unified Buffer leaves alone what lies between two rows",
        "docs, DataCopyPad (from the Unified Buffer to global memory)",
        "op_kernel/query_tokens.h, RowRuns: runs of one row each; partial_exchange.h: a copy for each piece",
        tokens.query_tokens,
    ),
    Point(
        "shared-tokens", "pairs of vector cores that share a cube core and keys meet at SyncAll",
        "docs, SyncAll (isAIVOnly) and CrossCoreSetFlag",
        "op_kernel/top_theta_incremental_attention_tiling_data.h, SharersOfKeys: 1, so that no two cores share keys",
        tokens.shared_tokens,
    ),
    Point(
        "graph-replay", "a captured launch reads lengths, token counts, thresholds and queries when it is replayed",
        "torch_npu, NPUGraph; aclmdlRI of CANN",
        "toptheta_npu/npu/adapter.cpp: what a capture keeps; op_host: no value dependence of the lengths",
        launch.graph_replay,
    ),
)  # fmt: skip


def choose(names: Sequence[str]) -> tuple[Point, ...]:
    """Choose the points of these names, in their own order; all of them for none.

    Raises:
        TopThetaValueError: a name that there is not.

    Example:
        >>> [point.name for point in choose(["exp-ln", "mask-bits"])]
        ['mask-bits', 'exp-ln']
    """
    known = {point.name for point in POINTS}
    for name in names:
        if name not in known:
            raise TopThetaValueError(
                "--only", "the name of a check", repr(name), f"{nearest(name, known)} (list: toptheta verify --list)"
            )
    return tuple(point for point in POINTS if not names or point.name in names)
