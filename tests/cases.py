"""The one table of shapes, `CASES`, and the one table of errors, `ERROR_CASES`, for every implementation.

`make_inputs` in helpers.py turns a case into tensors; `valid_arguments` is what an error case spoils.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toptheta_npu import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.fallback import Partial
from toptheta_npu.fallback.arguments import FLOAT_TENSORS, TABLE, Arguments

INF = float("inf")
#: Tensors of a number per query head that whole rows take, whatever their modes; prompts and merged parts do too.
PER_HEAD = tuple(name for name in Arguments._fields[FLOAT_TENSORS] if TABLE[name].about.shape == "[Hq]")
#: Those whose values have to be in a range, and one that is outside.
WRONG_VALUES = tuple(
    (name, wrong)
    for name in Arguments._fields[FLOAT_TENSORS]
    if (values := TABLE[name].about.values)
    for wrong in (math.nan, INF, -INF, -1e-40)
    if not values.least <= wrong < values.limit
)


@dataclass(frozen=True)
class Case:
    """One decode step. ``id`` says what the case is there for.

    Attributes:
        paged: "" contiguous; "4d" [blocks, Hkv, block_size, D]; "3d" [blocks, block_size, Hkv*D].
        blocks: order of a sequence's blocks in the pool, "permuted" or "descending".
        lengths: valid keys per sequence (the batch size is their number).
        lengths_as: "int32", "int64", "list", or "none" (the cache is full).
        starts: key_start per sequence; empty means the argument is left out.
        theta: "dense" -inf, "inf" +inf, "quantile" keeps about ``keep`` of a row, "nothing" lies just above
            the largest score, "mixed" takes these four in turn, head by head; "beside" is as "quantile", but as near
            to a score, above it or below by turns, as float32 can tell apart.
        shared_theta: threshold [Hq] in place of [B, Hq] (pre-softmax only).
        sink: a learnable sink per query head, by turns as large as the rest of the row, smaller, so large that it takes
            all of the weight, and -inf, which is none.
        scores: "plain" about N(0, 1); "steep" about N(0, 60^2); "offset" N(0, 1) + 900.
        int8: which of K and V are, "" (none), "key" or "both".
        scales: of int8, "channel", "token" (and head) or "tensor".
        value_scales: those of V where K has others; empty means the same as ``scales``.
        scales_as: their dtype.
        query_tokens: Sq; each has a threshold of its own.
        query_lengths: real tokens per sequence, ``actual_query_lengths``; empty means the argument is left out.
    """

    id: str
    dtype: str = "float32"
    layout: str = "BNSD"
    paged: str = ""
    block_size: int = 0
    blocks: str = "permuted"
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    lengths: tuple[int, ...] = (200,)
    lengths_as: str = "int32"
    starts: tuple[int, ...] = ()
    placement: str = "pre_softmax"
    sdc: str = "exact"
    vmc: bool = False
    sink: bool = False
    theta: str = "quantile"
    keep: float = 0.05
    shared_theta: bool = False
    scores: str = "plain"
    scale: float | None = None
    int8: str = ""
    scales: str = "channel"
    value_scales: str = ""
    scales_as: str = "float32"
    query_tokens: int = 1
    query_lengths: tuple[int, ...] = ()

    def scales_of(self, cache: str) -> str:
        """The scales of "key" or "value": "channel", "token" or "tensor"; "" where that cache is not int8."""
        if self.int8 not in ("both", cache):
            return ""
        return self.value_scales or self.scales if cache == "value" else self.scales

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)  # type: ignore[no-any-return]


#: Tensors with which a step is what it is without the argument, to the bit.
NEUTRAL: dict[str, Callable[[Case], Tensor]] = {
    "learnable_sink": lambda case: torch.full((case.heads,), -torch.inf),
}
_POST = {"placement": "post_softmax"}
#: Options of a case for what only the whole row can know, so that the merge of its parts adds it.
MERGED: tuple[dict[str, Any], ...] = (
    {"sink": True, "vmc": True}, {"sink": True, "sdc": "none"}, {"sink": True, **_POST, "dtype": "float16"},
)  # fmt: skip
_H = "float16"
_B = "bfloat16"

CASES = (
    # dtypes and layouts
    Case("f32-bnsd"),
    Case("f32-bsnd", layout="BSND", lengths=(200, 77)),
    Case("f32-bsh", layout="BSH", lengths=(200, 77)),
    Case("f16-bnsd", dtype=_H, lengths=(200, 129)),
    Case("f16-bsnd", dtype=_H, layout="BSND", lengths=(200, 129)),
    Case("f16-bsh", dtype=_H, layout="BSH", lengths=(200, 129)),
    Case("bf16-bnsd", dtype=_B, lengths=(200, 129)),
    Case("bf16-bsnd", dtype=_B, layout="BSND", lengths=(200, 129)),
    Case("bf16-bsh", dtype=_B, layout="BSH", lengths=(200, 129)),
    # lengths at the edges of vectors, tiles and chunks
    Case("n1", lengths=(1,)),
    Case("n1-inf-vmc", lengths=(1,), theta="inf", vmc=True),
    Case("n15", dtype=_H, lengths=(15,), keep=0.2),
    Case("n16", dtype=_H, lengths=(16,), keep=0.2),
    Case("n17", dtype=_H, lengths=(17,), keep=0.2),
    Case("n127", dtype=_B, lengths=(127,)),
    Case("n128", dtype=_B, lengths=(128,)),
    Case("n129", dtype=_B, lengths=(129,)),
    Case("n1000", dtype=_H, lengths=(1000,), head_dim=128),
    Case("n1023", dtype=_H, lengths=(1023,)),
    Case("n1024-full", dtype=_H, lengths=(1024,), lengths_as="none"),
    Case("n1025", dtype=_H, lengths=(1025,)),
    Case("n2048-full", dtype=_B, lengths=(2048,), lengths_as="none", head_dim=128),
    Case("n4097", dtype=_H, lengths=(4097,), head_dim=128, keep=0.02),
    Case("n4097-f32-dense", lengths=(4097,), theta="dense"),
    Case("ragged", lengths=(1, 1000, 16, 0, 129)),
    Case("ragged-f16-bsh", dtype=_H, layout="BSH", lengths=(129, 0, 1025, 17), lengths_as="int64"),
    Case("ragged-list", dtype=_B, lengths=(17, 500), lengths_as="list"),
    Case("short-dense-beside-long", dtype=_H, lengths=(16, 2048), theta="quantile", keep=0.01),
    Case("all-empty", lengths=(0, 0), theta="mixed"),
    Case("empty-vmc", lengths=(0, 64), vmc=True),
    Case("empty-post-vmc", lengths=(0, 64), vmc=True, **_POST),
    Case("empty-exp-threshold", lengths=(0, 64), sdc="exp_threshold", theta="mixed"),
    # groups
    Case("g1", dtype=_H, heads=4, kv_heads=4, lengths=(300,)),
    Case("g2", dtype=_B, heads=4, kv_heads=2, lengths=(300,)),
    Case("g4", dtype=_H, heads=8, kv_heads=2, lengths=(300, 40)),
    Case("g7", dtype=_B, heads=14, kv_heads=2, lengths=(300,), layout="BSND"),
    Case("g8", dtype=_H, heads=16, kv_heads=2, lengths=(300,), layout="BSH"),
    Case("g12-two-head-blocks", heads=12, kv_heads=1, lengths=(300,)),
    Case("g16-mqa-post", dtype=_H, heads=16, kv_heads=1, lengths=(257,), **_POST),
    Case("g8-d512-two-head-blocks", dtype=_H, heads=8, kv_heads=1, head_dim=512, lengths=(129,)),
    Case("g1-one-head", heads=1, kv_heads=1, lengths=(130,)),
    # head_dim
    Case("d16", dtype=_H, head_dim=16),
    Case("d40-any", dtype=_B, head_dim=40, layout="BSH", lengths=(150, 33)),
    Case("d40-any-f32-bsnd", head_dim=40, layout="BSND", lengths=(150, 33)),
    Case("d80", dtype=_H, head_dim=80),
    Case("d128", dtype=_B, head_dim=128),
    Case("d192", dtype=_H, head_dim=192, lengths=(129,)),
    Case("d256", dtype=_B, head_dim=256, lengths=(129,)),
    Case("d512", head_dim=512, lengths=(129,)),
    # left padding
    Case("start", lengths=(100, 160), starts=(60, 0)),
    Case("start-f16-bsnd", dtype=_H, layout="BSND", lengths=(17, 129, 0), starts=(128, 3, 20), lengths_as="int64"),
    Case("start-bf16-bsh-post", dtype=_B, layout="BSH", lengths=(40, 300), starts=(250, 7), **_POST),
    Case("start-exp-threshold", lengths=(100, 160), starts=(60, 1), sdc="exp_threshold", vmc=True),
    # paging
    Case("paged-4d", paged="4d", block_size=16, lengths=(200, 33)),
    Case("paged-4d-f16", dtype=_H, paged="4d", block_size=128, lengths=(1000, 0, 128)),
    Case("paged-4d-descending", dtype=_B, paged="4d", block_size=16, blocks="descending", lengths=(129, 64)),
    Case("paged-3d", paged="3d", block_size=16, lengths=(200, 33)),
    Case("paged-3d-bf16-bsh", dtype=_B, layout="BSH", paged="3d", block_size=32, lengths=(300, 1)),
    Case("paged-3d-f16-bsnd", dtype=_H, layout="BSND", paged="3d", block_size=64, lengths=(64, 65, 63)),
    Case("paged-4d-bsh", dtype=_H, layout="BSH", paged="4d", block_size=16, lengths=(129,), lengths_as="int64"),
    Case("paged-odd-block", dtype=_H, paged="4d", block_size=7, lengths=(50, 49, 48), keep=0.15),
    Case("paged-one-row-blocks", paged="3d", block_size=1, lengths=(19, 3), keep=0.2),
    Case("paged-post-vmc", dtype=_H, paged="4d", block_size=16, lengths=(150, 20), vmc=True, **_POST),
    Case("paged-d40-g7", dtype=_B, paged="3d", block_size=16, heads=7, kv_heads=1, head_dim=40, lengths=(77,)),
    Case("paged-nothing", dtype=_H, paged="4d", block_size=16, lengths=(100, 31), theta="nothing"),
    # SDC and VMC
    Case("sdc-none", dtype=_H, sdc="none"),
    Case("sdc-exact-vmc", dtype=_H, vmc=True),
    Case("sdc-exp-threshold", dtype=_H, sdc="exp_threshold", lengths=(200, 50)),
    Case("sdc-exp-threshold-vmc", dtype=_B, sdc="exp_threshold", vmc=True, lengths=(200, 50)),
    Case("sdc-offline", dtype=_B, sdc="offline", lengths=(200, 50)),
    Case("sdc-offline-vmc", dtype=_H, sdc="offline", vmc=True, lengths=(200, 50), layout="BSND"),
    Case("sdc-none-mixed", sdc="none", theta="mixed", heads=8),
    Case("sdc-exact-mixed-vmc", vmc=True, theta="mixed", heads=8, lengths=(150, 9)),
    Case("sdc-exp-threshold-mixed-vmc", sdc="exp_threshold", vmc=True, theta="mixed", heads=8, lengths=(150, 9)),
    Case("sdc-offline-mixed-vmc", sdc="offline", vmc=True, theta="mixed", heads=8, lengths=(150, 9)),
    Case("sdc-offline-dense-vmc", sdc="offline", vmc=True, theta="dense"),
    # thresholds
    Case("dense", dtype=_H, theta="dense", lengths=(200, 20)),
    Case("dense-bsh-g7", dtype=_B, theta="dense", layout="BSH", heads=7, kv_heads=1, lengths=(90, 100)),
    Case("inf", dtype=_B, theta="inf", lengths=(200, 20)),
    Case("inf-vmc", theta="inf", vmc=True, lengths=(200, 20)),
    Case("inf-exp-threshold", theta="inf", sdc="exp_threshold", lengths=(200, 20)),
    Case("nothing", dtype=_H, theta="nothing", lengths=(1000, 20)),
    Case("mixed", dtype=_H, theta="mixed", heads=16, kv_heads=2, lengths=(1000, 20)),
    Case("half-kept", dtype=_H, keep=0.5, lengths=(300,)),
    Case("about-a-third-kept", keep=0.33, lengths=(300, 301), kv_heads=4),
    Case("shared-threshold", shared_theta=True, lengths=(300, 200, 15)),
    Case("shared-threshold-mixed", dtype=_H, shared_theta=True, theta="mixed", heads=8, lengths=(300, 200)),
    Case("beside", lengths=(300, 200, 15), theta="beside"),
    Case("beside-f16-g8", dtype=_H, heads=16, kv_heads=2, lengths=(1000, 20), theta="beside", keep=0.2),
    Case("beside-steep-bf16-shared", dtype=_B, scores="steep", lengths=(300, 200), theta="beside", shared_theta=True),
    Case("beside-offset-int8", dtype=_H, kv_heads=4, int8="both", scores="offset", lengths=(129, 40), theta="beside"),
    # post-softmax
    Case("post-beside", dtype=_H, heads=16, kv_heads=4, lengths=(1000, 200), theta="beside", **_POST),
    Case("post-f32", lengths=(200, 20), **_POST),
    Case("post-f16-vmc-bsh", dtype=_H, layout="BSH", vmc=True, lengths=(1000, 20), **_POST),
    Case("post-bf16-mixed", dtype=_B, theta="mixed", heads=8, lengths=(300, 20), **_POST),
    Case("post-mixed-vmc", theta="mixed", heads=8, vmc=True, lengths=(300, 20), **_POST),
    Case("post-dense", theta="dense", lengths=(100,), **_POST),
    Case("post-inf", dtype=_H, theta="inf", lengths=(100,), **_POST),
    # learnable sinks
    Case("sink-f32", sink=True, lengths=(200, 77)),
    Case("sink-f16-bsh-vmc", dtype=_H, layout="BSH", sink=True, vmc=True, lengths=(200, 129)),
    Case("sink-bf16-bsnd-none", dtype=_B, layout="BSND", sdc="none", sink=True, lengths=(200, 0)),
    Case("sink-exp-threshold-vmc", sdc="exp_threshold", vmc=True, theta="mixed", heads=8, lengths=(150, 9), sink=True),
    Case("sink-offline-vmc-f16", dtype=_H, sdc="offline", vmc=True, lengths=(200, 50), sink=True),
    Case("sink-mixed-f16-g8", dtype=_H, theta="mixed", heads=16, kv_heads=2, lengths=(1000, 20), sink=True),
    Case("sink-nothing-g1", dtype=_B, theta="nothing", kv_heads=4, lengths=(1000, 0, 20), sink=True, vmc=True),
    Case("sink-dense-n4097", dtype=_H, theta="dense", head_dim=128, lengths=(4097,), sink=True),
    Case("sink-start-one-head", heads=1, kv_heads=1, lengths=(100, 160), starts=(60, 0), sink=True),
    Case("sink-paged-3d-g7", dtype=_B, paged="3d", block_size=16, heads=14, kv_heads=2, lengths=(300, 1), sink=True),
    Case("sink-paged-4d-f16", dtype=_H, paged="4d", block_size=128, lengths=(1000, 0, 128), vmc=True, sink=True),
    Case("sink-post-f32-vmc", lengths=(200, 20), vmc=True, sink=True, **_POST),
    Case("sink-post-f16-g12", dtype=_H, theta="mixed", heads=12, kv_heads=1, lengths=(300, 0), sink=True, **_POST),
    Case("sink-post-bf16-paged", dtype=_B, paged="4d", block_size=16, lengths=(150, 20), vmc=True, sink=True, **_POST),
    Case("sink-offset-f16-post", dtype=_H, scores="offset", lengths=(129,), sink=True, **_POST),
    Case("sink-steep-bf16", dtype=_B, scores="steep", lengths=(300,), sink=True),
    # int8 caches
    Case("int8-f32-channel", int8="both", lengths=(200, 77)),
    Case("int8-f32-token-bsnd", int8="both", scales="token", layout="BSND", lengths=(200, 77)),
    Case("int8-f16-tensor-bsh", dtype=_H, int8="both", scales="tensor", layout="BSH", lengths=(129, 0, 1025)),
    Case("int8-bf16-token-d128", dtype=_B, int8="both", scales="token", head_dim=128, lengths=(1000, 300), vmc=True),
    Case("int8-bf16-channel-d128-g1", dtype=_B, int8="both", kv_heads=4, head_dim=128, lengths=(1025,), vmc=True),
    Case("int8-key-f16-channel", dtype=_H, int8="key", lengths=(300, 20), vmc=True),
    Case("int8-key-bf16-token-g7", dtype=_B, int8="key", scales="token", heads=14, lengths=(300,)),
    Case("int8-key-f32-tensor", int8="key", scales="tensor", lengths=(129,)),
    Case("int8-f16-token-scales", dtype=_H, int8="both", scales="token", scales_as=_H, lengths=(257,)),
    Case("int8-bf16-token-scales", dtype=_B, int8="both", scales="token", scales_as=_B, lengths=(257,)),
    Case("int8-f16-channel-scales", dtype=_H, int8="both", scales_as=_H, lengths=(257,), theta="mixed"),
    Case("int8-full", dtype=_B, int8="both", scales="token", lengths=(1024,), lengths_as="none", head_dim=128),
    Case("int8-n1", int8="both", scales="token", lengths=(1, 0)),
    Case("int8-n4097-dense", dtype=_B, int8="both", theta="dense", head_dim=128, lengths=(4097,)),
    Case("int8-mixed-g8", dtype=_H, int8="both", scales="token", theta="mixed", heads=16, lengths=(1000, 20)),
    Case("int8-g12-two-head-blocks", int8="both", heads=12, kv_heads=1, lengths=(300,)),
    Case("int8-d16", dtype=_H, int8="both", scales="token", head_dim=16),
    Case("int8-d40-any", dtype=_B, int8="both", head_dim=40, layout="BSH", lengths=(150, 33)),
    Case("int8-d80", dtype=_H, int8="both", scales="token", head_dim=80),
    Case("int8-d512-two-head-blocks", dtype=_B, int8="both", heads=8, kv_heads=1, head_dim=512, lengths=(129,)),
    Case("int8-start", dtype=_H, int8="both", scales="token", layout="BSND", lengths=(17, 129, 0), starts=(128, 3, 20)),
    Case("int8-paged-4d", dtype=_B, int8="both", scales="token", paged="4d", block_size=16, lengths=(200, 33, 0)),
    Case("int8-paged-3d-channel", dtype=_H, int8="both", paged="3d", block_size=128, lengths=(300, 1), vmc=True),
    Case("int8-paged-key-token", int8="key", scales="token", paged="4d", block_size=16, lengths=(150,)),
    Case("int8-post-token", dtype=_H, int8="both", scales="token", lengths=(300, 0), vmc=True, **_POST),
    Case("int8-post-channel-paged", dtype=_B, int8="both", paged="4d", block_size=16, lengths=(150, 20), **_POST),
    Case("int8-steep", dtype=_B, int8="both", scales="token", scores="steep", lengths=(300,)),
    Case("int8-offset-vmc", dtype=_H, int8="both", scores="offset", lengths=(129,), vmc=True),
    Case("int8-offset-g4", dtype=_H, int8="both", scores="offset", heads=8, kv_heads=2, lengths=(129, 40)),
    Case("int8-sink-offline", dtype=_B, int8="both", scales="token", sdc="offline", sink=True, lengths=(300, 20)),
    Case("int8-exp-threshold", dtype=_H, int8="both", sdc="exp_threshold", theta="mixed", lengths=(300,), scale=-0.25),
    Case("int8-channel-and-token", dtype=_B, int8="both", value_scales="token", lengths=(300, 20), vmc=True),
    Case("int8-token-and-channel", dtype=_H, int8="both", scales="token", value_scales="channel", lengths=(300, 0)),
    Case("int8-tensor-and-token-paged", int8="both", scales="tensor", value_scales="token", paged="4d", block_size=16,
         lengths=(150, 20), sink=True, **_POST),
    Case("int8-token-and-tensor-g8", dtype=_H, int8="both", scales="token", value_scales="tensor", paged="3d",
         block_size=32, heads=16, lengths=(300,), theta="mixed"),
    # extreme scores, scale
    Case("steep-f32", scores="steep", lengths=(300,)),
    Case("steep-f16-exp-threshold", dtype=_H, scores="steep", lengths=(300,), sdc="exp_threshold", theta="mixed"),
    Case("steep-bf16-dense", dtype=_B, scores="steep", lengths=(300,), theta="dense"),
    Case("offset-f32-vmc", scores="offset", lengths=(129,), vmc=True),
    Case("offset-f16-post", dtype=_H, scores="offset", lengths=(129,), **_POST),
    Case("scale-1", dtype=_H, scale=1.0),
    Case("scale-negative", scale=-0.25),
)  # fmt: skip


_SAMPLE = {"placement": "sampled_softmax"}
#: Whole rows whose probabilities are a share of what a sample of keys tells: up to 400 keys that is all of them.
SAMPLED_CASES = (
    Case("sampled-f32", lengths=(1000, 401, 400, 0, 17), vmc=True, **_SAMPLE),
    Case("sampled-short", dtype=_H, lengths=(1, 16, 17, 143, 144, 145, 399), keep=0.2, **_SAMPLE),
    Case("sampled-f16-g4", dtype=_H, heads=8, kv_heads=2, head_dim=128, lengths=(2500, 700), **_SAMPLE),
    Case("sampled-bf16-g1", dtype=_B, heads=2, kv_heads=2, head_dim=128, lengths=(2049,), lengths_as="none", **_SAMPLE),
    Case("sampled-mixed", dtype=_H, heads=4, kv_heads=1, lengths=(1300, 402), theta="mixed", **_SAMPLE),
    Case("sampled-nothing", dtype=_B, heads=6, kv_heads=2, lengths=(900,), theta="nothing", **_SAMPLE),
    Case("sampled-sink", dtype=_H, heads=8, kv_heads=2, lengths=(800, 60), sink=True, vmc=True, **_SAMPLE),
    Case("sampled-start", dtype=_H, layout="BSND", lengths=(1100, 500), starts=(33, 600), **_SAMPLE),
    Case("sampled-paged-4d", dtype=_H, paged="4d", block_size=16, lengths=(3000, 410, 0), **_SAMPLE),
    Case("sampled-paged-3d", dtype=_B, layout="BSH", paged="3d", block_size=128, lengths=(1025,), **_SAMPLE),
    Case("sampled-paged-slices", dtype=_H, paged="4d", block_size=16, heads=2, kv_heads=1, lengths=(9000,), keep=0.02,
         **_SAMPLE),
    *(
        Case(f"sampled-d{d}", dtype=_H, heads=2, kv_heads=1, head_dim=d, lengths=(600,), **_SAMPLE)
        for d in (16, 80, 192, 256, 512)
    ),
    Case("sampled-two-head-blocks", dtype=_H, heads=11, kv_heads=1, lengths=(900, 40), **_SAMPLE),
    Case("sampled-beside-g4", dtype=_H, heads=16, kv_heads=4, lengths=(1000, 450, 401), theta="beside", **_SAMPLE),
    Case("sampled-beside-g1-paged", dtype=_B, heads=8, kv_heads=8, head_dim=32, paged="4d", block_size=16,
         lengths=(1900, 700), theta="beside", **_SAMPLE),
    Case("sampled-beside-int8", heads=12, kv_heads=3, int8="both", lengths=(1300, 600), theta="beside", sink=True,
         **_SAMPLE),
    Case("sampled-int8-token", dtype=_H, lengths=(1000, 77), int8="both", scales="token", **_SAMPLE),
    Case("sampled-int8-channel", dtype=_B, lengths=(1000, 77), int8="both", **_SAMPLE),
    Case("sampled-int8-channel-and-token-paged", dtype=_H, heads=6, kv_heads=2, head_dim=32, paged="4d", block_size=16,
         lengths=(2100, 450), int8="both", value_scales="token", **_SAMPLE),
    Case("sampled-int8-key-paged", dtype=_H, paged="4d", block_size=32, lengths=(1000, 77), int8="key", scales="token",
         **_SAMPLE),
    Case("sampled-tokens", dtype=_H, query_tokens=4, lengths=(1000, 403), query_lengths=(4, 2), **_SAMPLE),
)  # fmt: skip

#: Several query tokens in a step.
TOKEN_CASES = (
    Case("tokens-f32", query_tokens=4, lengths=(200, 77)),
    Case("tokens-f32-two-full", query_tokens=2, lengths=(120,), lengths_as="none"),
    Case("tokens-f16-bsnd", dtype=_H, layout="BSND", query_tokens=3, lengths=(200, 129), query_lengths=(3, 2)),
    Case("tokens-bf16-bsh", dtype=_B, layout="BSH", query_tokens=8, lengths=(200, 129), query_lengths=(1, 8)),
    Case("tokens-ragged", query_tokens=5, lengths=(300, 5, 0, 40, 3, 1), query_lengths=(5, 5, 0, 0, 3, 1), vmc=True),
    Case("tokens-ragged-list", dtype=_B, query_tokens=4, lengths=(17, 200), lengths_as="list", query_lengths=(4, 1)),
    Case("tokens-all-their-own-keys", query_tokens=4, lengths=(4, 2, 1), query_lengths=(4, 2, 1), theta="mixed"),
    Case("tokens-without-keys", query_tokens=3, lengths=(0, 50), vmc=True, sdc="exp_threshold"),
    Case("tokens-none-real", query_tokens=2, lengths=(30, 40), query_lengths=(0, 0)),
    Case("tokens-one-that-may-be-none", lengths=(30, 40, 0), query_lengths=(1, 0, 0), vmc=True),
    Case("tokens-sixteen", dtype=_B, query_tokens=16, head_dim=32, lengths=(150, 40), query_lengths=(16, 9)),
    Case("tokens-g1", dtype=_H, query_tokens=4, kv_heads=4, lengths=(300, 20), vmc=True),
    Case("tokens-g7", dtype=_B, query_tokens=3, heads=14, lengths=(300,), layout="BSND"),
    Case("tokens-g12-two-head-blocks", query_tokens=2, heads=12, kv_heads=1, lengths=(150, 9), query_lengths=(2, 1)),
    Case("tokens-one-head", query_tokens=4, heads=1, kv_heads=1, lengths=(130,), theta="nothing"),
    Case("tokens-d512", query_tokens=2, heads=8, kv_heads=1, head_dim=512, lengths=(60,)),
    Case("tokens-d40", dtype=_B, query_tokens=2, head_dim=40, layout="BSH", lengths=(150, 33)),
    Case("tokens-start", query_tokens=3, lengths=(100, 160), starts=(60, 0), query_lengths=(3, 1)),
    Case("tokens-start-f16-bsnd-post", dtype=_H, layout="BSND", query_tokens=4, lengths=(17, 129, 0),
         starts=(128, 3, 20), query_lengths=(4, 3, 0), **_POST),
    Case("tokens-paged-4d", query_tokens=4, paged="4d", block_size=16, lengths=(200, 33), query_lengths=(2, 4)),
    Case("tokens-paged-3d-bf16-bsh", dtype=_B, layout="BSH", query_tokens=3, paged="3d", block_size=32,
         lengths=(300, 1, 0), query_lengths=(3, 1, 0), vmc=True),
    Case("tokens-paged-one-row-blocks", query_tokens=4, paged="4d", block_size=1, lengths=(19, 5), keep=0.2),
    Case("tokens-sdc-none", dtype=_H, query_tokens=3, sdc="none", theta="mixed", heads=8, lengths=(150, 9)),
    Case("tokens-exp-threshold-vmc", query_tokens=3, sdc="exp_threshold", vmc=True, theta="mixed", heads=8,
         lengths=(150, 9), query_lengths=(3, 2)),
    Case("tokens-offline-vmc", dtype=_B, query_tokens=3, sdc="offline", vmc=True, lengths=(200, 50)),
    Case("tokens-dense", dtype=_H, query_tokens=4, theta="dense", lengths=(200, 20)),
    Case("tokens-inf-vmc", query_tokens=4, theta="inf", vmc=True, lengths=(200, 20)),
    Case("tokens-half-kept", dtype=_H, query_tokens=2, keep=0.5, lengths=(300,)),
    Case("tokens-shared-threshold", query_tokens=3, shared_theta=True, lengths=(150, 60, 15), query_lengths=(3, 3, 2)),
    Case("tokens-post-mixed-vmc", query_tokens=4, theta="mixed", heads=8, vmc=True, lengths=(150, 20), **_POST),
    Case("tokens-post-f16", dtype=_H, query_tokens=2, lengths=(300, 20), query_lengths=(1, 2), **_POST),
    Case("tokens-sink-vmc", query_tokens=4, sink=True, vmc=True, lengths=(200, 0), query_lengths=(3, 0)),
    Case("tokens-sink-post-bf16-paged", dtype=_B, query_tokens=2, paged="4d", block_size=16, lengths=(150, 20),
         vmc=True, sink=True, **_POST),
    Case("tokens-int8-channel", dtype=_B, query_tokens=4, int8="both", lengths=(200, 77), vmc=True),
    Case("tokens-int8-token-bsnd", query_tokens=3, int8="both", scales="token", layout="BSND", lengths=(200, 77)),
    Case("tokens-int8-channel-and-token", dtype=_H, query_tokens=4, int8="both", value_scales="token",
         lengths=(200, 77), query_lengths=(4, 2)),
    Case("tokens-int8-token-and-channel", dtype=_B, query_tokens=3, int8="both", scales="token",
         value_scales="channel", paged="3d", block_size=32, lengths=(200, 33)),
    Case("tokens-int8-paged-token", dtype=_H, query_tokens=4, int8="both", scales="token", paged="4d", block_size=16,
         lengths=(200, 33, 0), query_lengths=(4, 1, 0)),
    Case("tokens-int8-key-post", dtype=_H, query_tokens=2, int8="key", lengths=(150, 20), **_POST),
    Case("tokens-steep", query_tokens=3, scores="steep", lengths=(300,)),
    Case("tokens-offset-f16", dtype=_H, query_tokens=3, scores="offset", lengths=(129,), vmc=True),
)  # fmt: skip


def valid_arguments(base: str, device: str = "cpu") -> dict[str, Any]:
    """Arguments that are accepted, small: B = 2, Hq = 4, Hkv = 2, S = 8, D = 16, 3 pages of 4 rows; 3 tokens or one."""

    def normal(*shape: int) -> Tensor:
        return torch.ones(shape, device=device)

    lengths = torch.tensor([5, 8], dtype=torch.int32, device=device)
    key_value = {"key": normal(2, 2, 8, 16), "value": normal(2, 2, 8, 16)}
    decode = {"query": normal(2, 4, 1, 16), **key_value, "threshold": normal(4)}
    if base == "decode":
        return decode | {"actual_seq_lengths": lengths}
    if base == "bsh":
        flat = {"query": normal(2, 1, 64), "key": normal(2, 8, 32), "value": normal(2, 8, 32)}
        return decode | flat | {"input_layout": "BSH", "num_heads": 4, "num_key_value_heads": 2}
    if base == "paged":
        table = torch.tensor([[0, 1, -1], [4, 2, -1]], dtype=torch.int32, device=device)
        pool = {"key": normal(6, 2, 4, 16), "value": normal(6, 2, 4, 16)}
        return decode | pool | {"actual_seq_lengths": lengths, "block_table": table, "block_size": 4}
    if base.startswith("int8"):
        scales = {f"{name}_antiquant_scale": normal(2, 16) for name in ("key", "value")}
        whole = valid_arguments("paged" if base == "int8-paged" else "decode", device)
        return whole | {name: whole[name].to(torch.int8) for name in ("key", "value")} | scales
    if base == "tokens":
        real = torch.tensor([3, 2], device=device)
        return decode | {"query": normal(2, 4, 3, 16), "actual_seq_lengths": lengths, "actual_query_lengths": real}
    if base == "tokens-partial":
        seen = torch.tensor([[3, 4, 5], [7, 8, 0]], device=device)
        modes = {"placement": "post_softmax", "lse": normal(2, 4, 3)}
        return decode | modes | {"query": normal(2, 4, 3, 16), "actual_seq_lengths": seen}
    if base == "partial":
        return decode | {"placement": "post_softmax", "lse": normal(2, 4)}
    if base == "prefill":
        return {"query": normal(2, 4, 3, 16), **key_value, "threshold_per_row": normal(4, 3)}
    assert base in ("merge", "merge-tokens")
    rows = (2, 4) if base == "merge" else (2, 4, 3)
    part = (
        normal(2, 4, 1 if base == "merge" else 3, 16), *(normal(*rows) for _ in range(3)),
        torch.ones(rows, dtype=torch.int32, device=device),
    )  # fmt: skip
    seen = torch.tensor([[1, 2, 3], [2, 3, 0]], device=device)
    return {"parts": [part, part], "threshold": normal(4), "n": [5, 3 if base == "merge" else seen]}


#: The functions that accept the arguments of a base.
ENTRY_POINTS = {
    "decode": ("incremental_attention", "incremental_attention_with_stats"),
    "bsh": ("incremental_attention", "incremental_attention_with_stats"),
    "paged": ("incremental_attention", "incremental_attention_with_stats"),
    "int8": ("incremental_attention", "incremental_attention_with_stats", "incremental_attention_partial"),
    "int8-paged": ("incremental_attention", "incremental_attention_with_stats", "incremental_attention_partial"),
    "tokens": ("incremental_attention", "incremental_attention_with_stats"),
    "tokens-partial": ("incremental_attention_partial",),
    "partial": ("incremental_attention_partial",),
    "prefill": ("prefill_attention",),
    "merge": ("merge_partials",),
    "merge-tokens": ("merge_partials",),
}
_Arguments = dict[str, Any]


@dataclass(frozen=True)
class ErrorCase:
    """``change`` maps valid arguments to the wrong ones (the rest stays); "{device}" in ``message`` is the device."""

    id: str
    base: str
    change: Callable[[_Arguments], _Arguments]
    error: type[Exception]
    message: str
    values_on_host: bool = False  # the values of a tensor are wrong, which only a CPU checks


_V, _T, _N = TopThetaValueError, TopThetaTypeError, TopThetaNotImplementedError
_MASK = "give valid keys by actual_seq_lengths, key_start or block_table"
_QUANT = "queries and outputs are not quantised; pass float16 or bfloat16 tensors"
_BY_CACHE = "give the scales of int8 caches as key_antiquant_scale and value_antiquant_scale"
_SYMMETRIC = "int8 caches are symmetric; quantise without offsets"
_CAUSAL = "several query tokens are causal (sparse_mode 3), and trees of tokens are not supported; leave it out"
_NO_IFA = {
    "padding_mask": _MASK, "atten_mask": f"{_MASK}; {_CAUSAL}",
    **dict.fromkeys(("sparse_mode", "pre_tokens", "next_tokens"), _CAUSAL),
    "actual_seq_lengths_kv": "valid keys are actual_seq_lengths here, and query tokens actual_query_lengths",
    "query_padding_size": "real query tokens come first; give their number as actual_query_lengths",
    "softmax_lse_flag": "use incremental_attention_with_stats", "pse_shift": "positional biases are not supported",
    "kv_padding_size": "use key_start, the index of the first valid key",
    "inner_precise": "leave it out; scores and sums are always float32",
    "antiquant_scale": _BY_CACHE, "antiquant_mode": _BY_CACHE, "dequant_scale_key": _BY_CACHE,
    "dequant_scale_value": _BY_CACHE, "antiquant_offset": _SYMMETRIC, "key_antiquant_offset": _SYMMETRIC,
    "value_antiquant_offset": _SYMMETRIC, "dequant_scale1": _QUANT, "quant_scale1": _QUANT, "dequant_scale2": _QUANT,
    "quant_scale2": _QUANT, "quant_offset2": _QUANT,
}  # fmt: skip
_GRAD = (
    "{0}: expected a tensor that does not require grad (the operator is for inference), got requires_grad=True; "
    "call it under torch.no_grad() or pass {0}.detach()"
)
_POST_SDC = "needs placement='pre_softmax'; post-softmax the denominator is exact by construction: use sdc='exact'"
_TENSORS = (
    "query", "key", "value", "threshold", "actual_seq_lengths", "key_start", "actual_query_lengths", "value_mean",
    *PER_HEAD,
)  # fmt: skip
_NO_VMC = "excludes sdc='none', which leaves no mass to give back; use sdc='exact', or leave it out"


def _set(**values: Any) -> Callable[[_Arguments], _Arguments]:
    return lambda arguments: values


def _nested(name: str) -> Callable[[_Arguments], _Arguments]:
    return lambda arguments: {name: torch.nested.as_nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])}


def _sparse(name: str) -> Callable[[_Arguments], _Arguments]:
    return lambda arguments: {name: torch.ones(2, 3).to_sparse()}


def _device(arguments: _Arguments) -> torch.device:
    """Of the base's tensors."""
    (first, *_) = arguments["parts"][0] if "parts" in arguments else (arguments["query"],)
    return first.device


def _per_head(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[_Arguments], _Arguments]:
    """Change what would be right for a tensor of a number per query head."""
    return lambda arguments: {name: change(torch.ones(4, device=_device(arguments)))}


def _part_field(name: str, number: float) -> Callable[[_Arguments], _Arguments]:
    """Fill a statistic of the second of two parts."""

    def change(arguments: _Arguments) -> _Arguments:
        first, second = arguments["parts"]
        of_part = dict(zip(Partial._fields, second, strict=True))
        of_part[name] = torch.full_like(of_part[name], number)
        return {"parts": [first, tuple(of_part.values())]}

    return change


def _mass(value: float, shape: tuple[int, ...]) -> Callable[[_Arguments], _Arguments]:
    return lambda arguments: {"sdc": "offline", "discarded_mass": torch.full(shape, value)}


def _scale(name: str, wrong: float) -> Callable[[_Arguments], _Arguments]:
    """One of the scales per channel is wrong."""
    return lambda a: {f"{name}_antiquant_scale": a[f"{name}_antiquant_scale"].index_fill(1, _index(a), wrong)}


def _token_scale(name: str, wrong: float) -> Callable[[_Arguments], _Arguments]:
    """One of the scales per token and head is wrong, that of the first key."""

    def change(arguments: _Arguments) -> _Arguments:
        scale = torch.ones(2, 2, 8, device=_device(arguments)).index_fill(2, _index(arguments), wrong)
        return {f"{name}_antiquant_scale": scale, f"{name}_antiquant_mode": 3}

    return change


def _index(arguments: _Arguments) -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device=_device(arguments))


def _grad(name: str) -> ErrorCase:
    def change(arguments: _Arguments) -> _Arguments:
        return {name: arguments[name].clone().requires_grad_()}

    return ErrorCase(f"{name}-grad", "decode", change, _V, _GRAD.format(name))


ERROR_CASES = (
    *(ErrorCase(f"no-{name}", "decode", _set(**{name: 1}), _N,
                f"{name}: expected the argument left out, got a value; {way}") for name, way in _NO_IFA.items()),
    ErrorCase("unknown-argument", "decode", _set(num_head=4), _T,
              "num_head: expected a known argument, got an unknown name; see help(incremental_attention)"),
    ErrorCase("nan-threshold", "decode", lambda a: {"threshold": a["threshold"] * float("nan")}, _V,
              "threshold: expected numbers, -inf or +inf, got NaN; calibrate again", True),
    ErrorCase("lengths-too-large", "decode", _set(actual_seq_lengths=[2**70, 1]), _V,
              f"actual_seq_lengths: expected ints of 64 bits, got [{2**70}, 1]"),
    ErrorCase("block-size-none", "paged", _set(block_size=None), _T, "block_size: expected an int, got NoneType"),
    ErrorCase("private-path", "decode", _set(_path="fast"), _V,
              "_path: expected one of auto, gather, dense, got 'fast'"),
    ErrorCase("no-sequence", "decode", lambda a: {"query": a["query"][:0]}, _V,
              "query: expected at least one sequence, got [0, 4, 1, 16]"),
    # types and dtypes
    ErrorCase("query-type", "decode",
              lambda a: {"query": a["query"].tolist()}, _T, "query: expected a torch.Tensor, got list"),
    ErrorCase("key-type", "decode", _set(key=None), _T, "key: expected a torch.Tensor, got NoneType"),
    ErrorCase("query-dtype", "decode", lambda a: {"query": a["query"].double()}, _T,
              "query: expected dtype float16 or bfloat16 or float32, got float64; "
              "convert it with query.to(torch.float16)"),
    ErrorCase("key-dtype", "decode", lambda a: {"key": a["key"].half()}, _T,
              "key: expected dtype float32 or int8, got float16; convert it with key.to(torch.float32)"),
    ErrorCase("value-dtype", "decode", lambda a: {"value": a["value"].bfloat16()}, _T,
              "value: expected dtype float32, got bfloat16; convert it with value.to(torch.float32)"),
    ErrorCase("threshold-dtype", "decode", lambda a: {"threshold": a["threshold"].half()}, _T,
              "threshold: expected dtype float32, got float16; convert it with threshold.to(torch.float32)"),
    ErrorCase("lengths-dtype", "decode", lambda a: {"actual_seq_lengths": a["actual_seq_lengths"].float()}, _T,
              "actual_seq_lengths: expected dtype int32 or int64, got float32; "
              "convert it with actual_seq_lengths.to(torch.int32)"),
    ErrorCase("table-dtype", "paged", lambda a: {"block_table": a["block_table"].long()}, _T,
              "block_table: expected dtype int32, got int64; convert it with block_table.to(torch.int32)"),
    ErrorCase("scale-type", "decode", _set(scale_value="1"), _T, "scale_value: expected a number, got str"),
    ErrorCase("num-heads-bool", "bsh", _set(num_heads=True), _T, "num_heads: expected an int or None, got bool"),
    ErrorCase("prefill-vmc-type", "prefill", _set(vmc="yes"), _T, "vmc: expected True or False, got str"),
    # tensors without strides
    *(ErrorCase(f"{name}-nested", "decode", _nested(name), _N, f"{name}: expected a dense tensor, got a nested tensor; "
                "pad it, and give the valid keys by actual_seq_lengths") for name in _TENSORS),
    *(ErrorCase(f"{name}-sparse", "decode", _sparse(name), _N, f"{name}: expected a dense tensor, got layout "
                f"sparse_coo; pass {name}.to_dense()") for name in _TENSORS),
    ErrorCase("prefill-query-nested", "prefill", _nested("query"), _N, "query: expected a dense tensor, got a nested "
              "tensor; pad it, and give the valid keys by actual_seq_lengths"),
    ErrorCase("merge-mean-sparse", "merge", lambda a: {"value_mean": torch.ones(2, 4, 16).to_sparse()}, _N,
              "value_mean: expected a dense tensor, got layout sparse_coo; pass value_mean.to_dense()"),
    # int8 caches
    ErrorCase("int8-without-key-scale", "int8", _set(key_antiquant_scale=None), _V,
              "key_antiquant_scale: expected the scales of an int8 cache, got None"),
    ErrorCase("int8-without-value-scale", "int8", _set(value_antiquant_scale=None), _V,
              "value_antiquant_scale: expected the scales of an int8 cache, got None"),
    ErrorCase("int8-scale-without-int8", "decode", lambda a: {"key_antiquant_scale": a["key"][0, :, 0]}, _V,
              "key_antiquant_scale needs an int8 cache, and key is float32; leave it out, or quantise the cache"),
    ErrorCase("int8-mode-without-int8", "decode", _set(value_antiquant_mode=3), _V,
              "value_antiquant_mode: expected 0, since value is float32, got 3"),
    ErrorCase("int8-value-alone", "int8", lambda a: {"key": a["key"].float(), "key_antiquant_scale": None}, _N,
              "value: expected float32, as key is, got int8; quantise K alone, or both"),
    ErrorCase("int8-value-dtype", "int8", lambda a: {"value": a["value"].half()}, _T,
              "value: expected dtype float32 or int8, got float16; convert it with value.to(torch.float32)"),
    *(ErrorCase(f"int8-mode-{mode}", "int8", _set(key_antiquant_mode=mode), _N,
                "key_antiquant_mode: expected 0 (per channel), 3 (per token and head), 5 (the same paged), got "
                f"{mode}; quantise the cache in one of these ways") for mode in (1, 2, 4, -1)),
    ErrorCase("int8-mode-type", "int8", _set(value_antiquant_mode="3"), _T,
              "value_antiquant_mode: expected an int, got '3'"),
    ErrorCase("int8-paged-mode", "int8", _set(key_antiquant_mode=5), _V,
              "key_antiquant_mode: expected 3 or 0, since the cache is not paged, got 5"),
    ErrorCase("int8-channel-shape", "int8", lambda a: {"key_antiquant_scale": a["key_antiquant_scale"].T}, _V,
              "key_antiquant_scale: expected shape [2, 16] [Hkv, D], or what broadcasts to it, got [16, 2]; "
              "of mode 0 there is one number per channel"),
    ErrorCase("int8-token-shape", "int8", _set(key_antiquant_mode=3), _V,
              "key_antiquant_scale: expected shape [2, 2, 8] [B, Hkv, S], got [2, 16]"),
    ErrorCase("int8-paged-shape", "int8-paged", _set(value_antiquant_mode=5), _V,
              "value_antiquant_scale: expected shape [6, 2, 4] [blocks, Hkv, block_size], got [2, 16]"),
    ErrorCase("int8-scale-dtype", "int8", lambda a: {"key_antiquant_scale": a["key_antiquant_scale"].int()}, _T,
              "key_antiquant_scale: expected dtype float16 or bfloat16 or float32, got int32; "
              "convert it with key_antiquant_scale.to(torch.float16)"),
    *(ErrorCase(f"int8-scale-{wrong}", "int8", _scale("key", wrong), _V,
                f"key_antiquant_scale: expected finite numbers >= 0, got {wrong:g}; quantise the cache again", True)
      for wrong in (-1.0, math.nan, INF)),
    *(ErrorCase(f"int8-token-scale-{wrong}", "int8", _token_scale("value", wrong), _V,
                f"value_antiquant_scale: expected finite numbers >= 0, got {wrong:g}; quantise the cache again", True)
      for wrong in (-1.0, math.nan, INF)),
    ErrorCase("prefill-int8-without-scale", "prefill", lambda a: {"key": a["key"].to(torch.int8)}, _V,
              "key_antiquant_scale: expected the scales of an int8 cache, got None"),
    # devices
    ErrorCase("prefill-meta", "prefill", lambda a: {"query": a["query"].to("meta")}, _N,
              "query: expected a tensor on cpu or cuda or npu, got meta; move it with query.cpu()"),
    ErrorCase("key-device", "decode", lambda a: {"key": a["key"].to("meta")}, _V,
              "key: expected a tensor on {device}, like query, got meta; move it with key.to(query.device)"),
    # shapes
    ErrorCase("query-dims", "decode", lambda a: {"query": a["query"][:, :, 0]}, _V,
              "query: expected BNSD [B, Hq, Sq, D], got [2, 4, 16]"),
    ErrorCase("query-no-heads", "decode", lambda a: {"query": a["query"][:, :0]}, _V,
              "query: expected at least one head, got [2, 0, 1, 16]"),
    ErrorCase("head-dim-small", "decode", lambda a: {name: a[name][..., :15] for name in ("query", "key", "value")}, _V,
              "query: expected head_dim from 16 to 512, got 15"),
    ErrorCase("head-dim-large", "bsh", _set(query=torch.ones(2, 1, 2052)), _V,
              "query: expected head_dim from 16 to 512, got 513"),
    ErrorCase("key-dims", "decode", lambda a: {"key": a["key"].flatten(2)}, _V,
              "key: expected 4 dimensions for BNSD, got [2, 2, 128]"),
    ErrorCase("key-head-dim", "decode", lambda a: {"key": a["key"][..., :8]}, _V,
              "key: expected shape [2, 2, 8, 16] [B, Hkv, S, D], got [2, 2, 8, 8]"),
    ErrorCase("key-batch", "decode", lambda a: {"key": a["key"][:1]}, _V,
              "key: expected shape [2, 2, 8, 16] [B, Hkv, S, D], got [1, 2, 8, 16]"),
    ErrorCase("key-heads", "decode", lambda a: {"key": torch.ones_like(a["key"]).repeat(1, 2, 1, 1)[:, :3]}, _V,
              "num_key_value_heads: expected a divisor of the 4 query heads, got 3; check the KV cache's layout"),
    ErrorCase("key-no-rows", "decode", lambda a: {name: a[name][:, :, :0] for name in ("key", "value")}, _V,
              "key: expected room for at least one key, got [2, 2, 0, 16]"),
    ErrorCase("value-shape", "decode", lambda a: {"value": a["value"][:, :, :7]}, _V,
              "value: expected shape [2, 2, 8, 16], like key, got [2, 2, 7, 16]"),
    ErrorCase("threshold-heads", "decode", lambda a: {"threshold": a["threshold"][:2]}, _V,
              "threshold: expected shape [4] [Hq], got [2]"),
    ErrorCase("threshold-batch", "decode", lambda a: {"threshold": a["threshold"].expand(3, 4)}, _V,
              "threshold: expected shape [2, 4] [B, Hq], got [3, 4]"),
    ErrorCase("lengths-shape", "decode", _set(actual_seq_lengths=[5, 8, 1]), _V,
              "actual_seq_lengths: expected shape [2] [B], got [3]"),
    ErrorCase("start-shape", "decode", _set(key_start=[0]), _V, "key_start: expected shape [2] [B], got [1]"),
    ErrorCase("table-batch", "paged", lambda a: {"block_table": a["block_table"][:1]}, _V,
              "block_table: expected shape [2, any] [B, max_blocks], got [1, 3]"),
    ErrorCase("table-no-blocks", "paged", lambda a: {"block_table": a["block_table"][:, :0]}, _V,
              "block_table: expected at least one block per sequence, got [2, 0]"),
    ErrorCase("mean-heads", "decode", lambda a: {"value_mean": a["value"][:, :1, 0]}, _V,
              "value_mean: expected shape [2, 2, 16] [B, Hkv, D], got [2, 1, 16]"),
    ErrorCase("mean-head-dim", "decode", lambda a: {"value_mean": a["value"][:, :, 0, :1]}, _V,
              "value_mean: expected shape [2, 2, 16] [B, Hkv, D], got [2, 2, 1]"),
    ErrorCase("mass-shape", "decode", lambda a: {"discarded_mass": a["threshold"], "sdc": "offline"}, _V,
              "discarded_mass: expected shape [2, 4] [B, Hq], got [4]"),
    *(ErrorCase(f"{name}-dtype", "decode", _per_head(name, lambda heads: heads.bfloat16()), _T,
                f"{name}: expected dtype float32, got bfloat16; convert it with {name}.to(torch.float32)")
      for name in PER_HEAD),
    *(ErrorCase(f"{base}-{name}-shape", base, _per_head(name, lambda heads: heads.expand(2, 4)), _V,
                f"{name}: expected shape [4] [Hq], got [2, 4]")
      for base in ("decode", "prefill", "merge") for name in PER_HEAD),
    *(ErrorCase(f"{base}-{name}-{wrong}", base, _set(**{name: torch.tensor([0.0, 0.5, 1.0, wrong])}), _V,
                f"{name}: expected {about.expected}, got {wrong:g}; {about.remedy}", True)
      for base in ("decode", "prefill", "merge") for name, wrong in WRONG_VALUES
      if name in PER_HEAD and (about := TABLE[name].about.values)),
    # heads
    ErrorCase("bsh-no-heads", "bsh", _set(num_heads=None), _V,
              "num_heads: expected the number of query heads (BSH does not tell it), got None"),
    ErrorCase("bsh-heads-not-divisor", "bsh", _set(num_heads=3), _V,
              "num_heads: expected a divisor of the hidden size 64, got 3"),
    ErrorCase("bsh-kv-heads-not-divisor", "bsh", _set(num_key_value_heads=3), _V,
              "num_key_value_heads: expected a divisor of the 4 query heads, got 3; check the KV cache's layout"),
    ErrorCase("bsh-kv-heads-default", "bsh", _set(num_key_value_heads=0), _V,
              "key: expected shape [2, 8, 64] [B, S, Hkv*D], got [2, 8, 32]"),
    ErrorCase("heads-contradict", "decode",
              _set(num_heads=2), _V, "num_heads: expected 4, as query says, or None, got 2"),
    ErrorCase("kv-heads-contradict", "decode", _set(num_key_value_heads=4), _V,
              "num_key_value_heads: expected 2, as key says, or None, got 4"),
    # choices and ranges
    ErrorCase("layout", "decode",
              _set(input_layout="TND"), _V, "input_layout: expected one of BNSD, BSND, BSH, got 'TND'"),
    ErrorCase("placement", "decode", _set(placement="pre"), _V,
              "placement: expected one of pre_softmax, post_softmax, sampled_softmax, got 'pre'"),
    ErrorCase("sdc", "decode",
              _set(sdc=None), _V, "sdc: expected one of none, exact, exp_threshold, offline, got None"),
    ErrorCase("gamma-negative", "decode",
              _set(sdc_gamma=-0.1), _V, "sdc_gamma: expected a finite number >= 0, got -0.1"),
    ErrorCase("gamma-nan", "decode",
              _set(sdc_gamma=float("nan")), _V, "sdc_gamma: expected a finite number >= 0, got nan"),
    ErrorCase("scale-inf", "decode", _set(scale_value=INF), _V, "scale_value: expected a finite number, got inf"),
    ErrorCase("scale-beyond-float32", "decode", _set(scale_value=-1e300), _V,
              "scale_value: expected a number that float32 can hold, got -1e+300"),
    ErrorCase("block-size-large", "paged", _set(block_size=2**70), _V,
              f"block_size: expected the rows per block of the paged cache, got {2**70}"),
    *(ErrorCase(f"{base}-mass-{value}", base, _mass(value, shape), _V,
                f"discarded_mass: expected finite numbers >= 0, got {value}; calibrate again", True)
      for base, shape in (("decode", (2, 4)), ("prefill", (2, 4, 3)), ("merge", (2, 4)))
      for value in (-0.5, math.nan, INF)),
    *(ErrorCase(f"{base}-post-score", base, lambda a, name=name: {"placement": "post_softmax", name: a[name] * 1.5}, _V,
                f"{name}: expected probabilities up to 1, or +inf, with placement='post_softmax', got 1.5; "
                "thresholds in units of the score go with placement='pre_softmax'", True)
      for base, name in (("decode", "threshold"), ("partial", "threshold"), ("prefill", "threshold_per_row"),
                         ("merge", "threshold"))),
    ErrorCase("length-too-long", "decode", _set(actual_seq_lengths=[9, 3]), _V,
              "actual_seq_lengths[0]: expected 0 to 8 (the cache's capacity), got 9", True),
    ErrorCase("start-negative", "decode", _set(key_start=[-1, 0]), _V,
              "key_start[0]: expected 0 to 8 (the cache's capacity), got -1", True),
    ErrorCase("start-and-length-too-long", "decode", _set(key_start=[3, 1]), _V,
              "actual_seq_lengths[1]: expected 0 to 7 (the cache's capacity), got 8", True),
    ErrorCase("paged-length-too-long", "paged", _set(actual_seq_lengths=[13, 1]), _V,
              "actual_seq_lengths[0]: expected 0 to 12 (the cache's capacity), got 13", True),
    ErrorCase("table-entry-negative", "paged", _set(actual_seq_lengths=[5, 9]), _V,
              "block_table[1]: expected block numbers 0 to 5, got -1", True),
    ErrorCase("table-entry-too-large", "paged", lambda a: {"block_table": a["block_table"] + 2}, _V,
              "block_table[1]: expected block numbers 0 to 5, got 6", True),
    # companions
    ErrorCase("paged-no-lengths", "paged", _set(actual_seq_lengths=None), _V,
              "actual_seq_lengths: expected the length of every sequence, since the cache is paged, got None"),
    ErrorCase("paged-start", "paged", _set(key_start=[0, 0]), _N,
              "key_start: expected None with a paged cache, got a tensor; start each sequence at its first block"),
    ErrorCase("paged-no-block-size", "paged", _set(block_size=0), _V,
              "block_size: expected the rows per block of the paged cache, got 0"),
    ErrorCase("paged-block-size-contradicts", "paged", _set(block_size=8), _V,
              "key: expected shape [6, 2, 8, 16] [blocks, Hkv, block_size, D], got [6, 2, 4, 16]"),
    ErrorCase("block-size-no-table", "paged", _set(block_table=None), _V,
              "block_size=4 needs block_table; give the table of the paged cache, or leave block_size out"),
    ErrorCase("offline-no-mass", "decode", _set(sdc="offline"), _V,
              "discarded_mass: expected the calibrated estimate, since sdc='offline', got None; or use sdc='exact'"),
    ErrorCase("mass-not-offline", "decode", lambda a: {"discarded_mass": torch.ones_like(a["query"][:, :, 0, 0])}, _V,
              "discarded_mass needs sdc='offline'; leave it out, or use that"),
    ErrorCase("vmc-without-sdc", "decode", lambda a: {"sdc": "none", "value_mean": a["value"][:, :, 0]}, _V,
              f"value_mean {_NO_VMC}"),
    ErrorCase("post-sdc-none", "decode", _set(placement="post_softmax", sdc="none"), _V,
              f"sdc='none' {_POST_SDC}"),
    ErrorCase("post-sdc-exp-threshold", "decode", _set(placement="post_softmax", sdc="exp_threshold"), _V,
              f"sdc='exp_threshold' {_POST_SDC}"),
    *map(_grad, ("query", "key", "value", "threshold")),
    # several query tokens
    ErrorCase("query-no-tokens", "decode", lambda a: {"query": a["query"][:, :, :0]}, _V,
              "query: expected at least one token, BNSD [B, Hq, Sq, D], got [2, 4, 0, 16]"),
    ErrorCase("query-many-tokens", "bsh", lambda a: {"query": a["query"].expand(2, 17, 64)}, _N,
              "query: expected 1 to 16 tokens, BSH [B, Sq, Hq*D], got [2, 17, 64]; "
              "use prefill_attention for more tokens"),
    ErrorCase("tokens-threshold", "tokens", lambda a: {"threshold": a["threshold"].expand(3, 2, 4).mT.mT}, _V,
              "threshold: expected shape [2, 4, 3] [B, Hq, Sq], got [3, 2, 4]"),
    ErrorCase("tokens-mean-of-all-keys", "tokens", lambda a: {"value_mean": a["value"][:, :, 0]}, _V,
              "value_mean: expected shape [2, 2, 3, 16] [B, Hkv, Sq, D], got [2, 2, 16]"),
    ErrorCase("mean-of-tokens", "decode", lambda a: {"value_mean": a["value"][:, :, :1]}, _V,
              "value_mean: expected shape [2, 2, 16] [B, Hkv, D], got [2, 2, 1, 16]"),
    ErrorCase("query-lengths-dtype", "tokens",
              lambda a: {"actual_query_lengths": a["actual_query_lengths"].float()}, _T,
              "actual_query_lengths: expected dtype int32 or int64, got float32; "
              "convert it with actual_query_lengths.to(torch.int32)"),
    ErrorCase("query-lengths-too-many", "tokens", _set(actual_query_lengths=[4, 3]), _V,
              "actual_query_lengths[0]: expected 0 to 3 (the query's tokens), got 4", True),
    ErrorCase("query-lengths-one-token", "tokens", lambda a: {"query": a["query"][:, :, :1]}, _V,
              "actual_query_lengths[0]: expected 0 to 1 (the query's tokens), got 3", True),
    ErrorCase("query-lengths-over-keys", "tokens", _set(actual_seq_lengths=[5, 1]), _V,
              "actual_query_lengths[1]: expected 0 to 1 (the valid keys, which include theirs), got 2", True),
    ErrorCase("tokens-over-keys", "tokens", _set(actual_seq_lengths=[0, 2], actual_query_lengths=None), _V,
              "actual_seq_lengths[1]: expected 0, or at least the keys of the 3 query tokens, got 2; "
              "give the real tokens of each sequence by actual_query_lengths", True),
    ErrorCase("tokens-lengths-of-tokens", "tokens", lambda a: {"actual_seq_lengths": torch.ones_like(a["threshold"])
              .int().expand(2, 4)[:, :3]}, _V, "actual_seq_lengths: expected shape [2] [B], got [2, 3]"),
    *(ErrorCase(f"tokens-partial-lengths-{got}", "tokens-partial", _set(actual_seq_lengths=given), _V,
                "actual_seq_lengths: expected shape [2, 3] [B, Sq], the keys of this part that each token sees, "
                f"got {got}") for given, got in ((None, "None"), ([5, 8], "[2]"))),
    ErrorCase("tokens-partial-length-too-long", "tokens-partial",
              lambda a: {"actual_seq_lengths": a["actual_seq_lengths"] + 1}, _V,
              "actual_seq_lengths[1]: expected 0 to 8 (the cache's capacity), got 9", True),
    ErrorCase("tokens-partial-query-lengths", "tokens-partial", _set(actual_query_lengths=[3, 2]), _T,
              "actual_query_lengths: expected a known argument, got an unknown name; "
              "see help(incremental_attention_partial)"),
    ErrorCase("merge-tokens-n", "merge-tokens", lambda a: {"n": [5, a["n"][1][:, 0]]}, _V,
              "n[1]: expected shape [2, 3] [B, Sq], got [2]"),
    ErrorCase("merge-tokens-out", "merge-tokens", lambda a: {"input_layout": "BSND"}, _V,
              "parts[0].out: expected shape [2, 3, 4, 16] in the layout BSND, got [2, 4, 3, 16]"),
    ErrorCase("merge-tokens-mean", "merge-tokens", lambda a: {"value_mean": a["parts"][0][0][:, :2, 0]}, _V,
              "value_mean: expected shape [2, 4, 3, 16] [B, Hkv, Sq, D], got [2, 2, 16]"),
    # partials and their merge
    ErrorCase("partial-post-no-lse", "partial", _set(lse=None), _V,
              "lse: expected the whole row's LSE [B, Hq] with placement='post_softmax', got None"),
    ErrorCase("partial-pre-lse", "partial", _set(placement="pre_softmax"), _V,
              "lse needs placement='post_softmax'; leave it out"),
    ErrorCase("partial-lse-shape", "partial", lambda a: {"lse": a["lse"][:, :3]}, _V,
              "lse: expected shape [2, 4] [B, Hq], got [2, 3]"),
    *(ErrorCase(f"partial-{name}", "partial", _per_head(name, lambda heads: heads), _T,
                f"{name}: expected a known argument, got an unknown name; see help(incremental_attention_partial)")
      for name in PER_HEAD),
    *(ErrorCase(f"partial-lse-{wrong}", "partial", lambda a, wrong=wrong: {"lse": torch.full_like(a["lse"], wrong)}, _V,
                f"lse: expected finite numbers, or -inf for no keys, got {wrong}; look for NaN in query and key", True)
      for wrong in (math.nan, math.inf)),
    *(ErrorCase(f"merge-{name}-{wrong}", "merge", _part_field(name, wrong), _V,
                f"parts[1].{name}: expected {expected}, got {wrong}; give what incremental_attention_partial "
                "returned, and look for NaN in its query and key", True)
      for name, wrong, expected in (("maximum", math.nan, "numbers, or -inf where there are no keys"),
                                    ("kept_mass", math.nan, "numbers of at least 0"),
                                    ("kept_mass", -1, "numbers of at least 0"),
                                    ("discarded_mass", math.nan, "numbers of at least 0"),
                                    ("discarded_mass", -2, "numbers of at least 0"),
                                    ("kept", -1, "numbers of at least 0"))),
    ErrorCase("merge-no-parts", "merge", _set(parts=[]), _V, "parts: expected at least one part, got none"),
    ErrorCase("merge-n-count", "merge", _set(n=[5]), _V, "n: expected one entry per part, 2, got 1"),
    ErrorCase("merge-threshold-shape", "merge", lambda a: {"threshold": a["threshold"][:3]}, _V,
              "threshold: expected shape [4] [Hq], got [3]"),
    ErrorCase("merge-offline-no-mass", "merge", _set(sdc="offline"), _V,
              "discarded_mass: expected the calibrated estimate, since sdc='offline', got None; or use sdc='exact'"),
    ErrorCase("merge-vmc-without-sdc", "merge", lambda a: {"sdc": "none", "value_mean": a["parts"][0][0][:, :2, 0]}, _V,
              f"value_mean {_NO_VMC}"),
    ErrorCase("merge-layout", "merge",
              _set(input_layout="BND"), _V, "input_layout: expected one of BNSD, BSND, BSH, got 'BND'"),
    ErrorCase("merge-mean-type", "merge", _set(value_mean=0.0), _T, "value_mean: expected a torch.Tensor, got float"),
    ErrorCase("merge-part-type", "merge", _set(parts=[1, 2]), _T,
              "parts[0]: expected a result of incremental_attention_partial, a tuple of 5 tensors, got int"),
    ErrorCase("merge-part-shape", "merge",
              lambda a: {"parts": [a["parts"][0], (*a["parts"][1][:4], a["parts"][1][4][:1])]}, _V,
              "parts[1].kept: expected shape [2, 4] [B, Hq], got [1, 4]"),
    ErrorCase("merge-n-not-a-list", "merge", _set(n=64), _T,
              "n: expected a list with the valid keys of each part, got int"),
    ErrorCase("merge-n-negative", "merge", _set(n=[-5, 13]), _V,
              "n[0]: expected a number of keys, at least 0, got -5"),
    ErrorCase("merge-post-without-sdc", "merge", _set(placement="post_softmax", sdc="none"), _V,
              f"sdc='none' {_POST_SDC}"),
    ErrorCase("merge-n-negative-tensor", "merge", lambda a: {"n": [a["parts"][0][4][:, 0] - 2, 3]}, _V,
              "n[0]: expected numbers of keys, at least 0, got -1", True),
    ErrorCase("merge-n-too-few", "merge", _set(n=[1, 0]), _V,
              "n: expected at least the keys that the parts kept, got 1 fewer; give the valid keys of each part", True),
    ErrorCase("merge-generator", "merge", lambda a: {"parts": (part for part in a["parts"])}, _T,
              "parts: expected a list with the results of the parts, got generator"),
    ErrorCase("merge-no-heads", "merge", lambda a: {"parts": [tuple(t[:, :0] for t in a["parts"][0])]}, _V,
              "parts[0].maximum: expected shape [B, Hq], or [B, Hq, Sq], got [2, 0]"),
    ErrorCase("merge-nan-threshold", "merge", lambda a: {"threshold": a["threshold"] * math.nan}, _V,
              "threshold: expected numbers, -inf or +inf, got NaN; calibrate again", True),
    *(ErrorCase(f"merge-dtype-{wrong}", "merge", _set(dtype=wrong), _T,
                f"dtype: expected torch.float16 or torch.bfloat16 or torch.float32, got {wrong!r}")
      for wrong in ("float16", torch.int32, torch.float64)),
    ErrorCase("merge-n-type", "merge", _set(n=[4.5, 4]), _T,
              "n[0]: expected an int or an integer tensor [B], got float"),
    ErrorCase("merge-grad", "merge",
              lambda a: {"parts": [a["parts"][0], (a["parts"][1][0].clone().requires_grad_(), *a["parts"][1][1:])]}, _V,
              _GRAD.format("parts[1].out")),
    ErrorCase("merge-mean-heads", "merge", lambda a: {"value_mean": a["parts"][0][0][:, :3, 0]}, _V,
              "value_mean: expected a number of KV heads that divides 4, got 3"),
    # prefill
    ErrorCase("prefill-no-rows", "prefill", lambda a: {"query": a["query"][:, :, :0]}, _V,
              "query: expected at least one sequence, head and row, got [2, 4, 0, 16]"),
    ErrorCase("prefill-nan-threshold", "prefill",
              lambda a: {"threshold_per_row": a["threshold_per_row"] * float("nan")}, _V,
              "threshold_per_row: expected numbers, -inf or +inf, got NaN; calibrate again", True),
    ErrorCase("prefill-query-dims", "prefill", lambda a: {"query": a["query"][0]}, _V,
              "query: expected shape [any, any, any, any] [B, Hq, Q, D], got [4, 3, 16]"),
    ErrorCase("prefill-short-keys", "prefill", lambda a: {name: a[name][:, :, :2] for name in ("key", "value")}, _V,
              "key: expected at least the query's 3 keys, got 2"),
    ErrorCase("prefill-kv-heads", "prefill",
              lambda a: {n: a[n].repeat(1, 2, 1, 1)[:, :3] for n in ("key", "value")}, _V,
              "key: expected a number of KV heads that divides the 4 query heads, got 3"),
    ErrorCase("prefill-threshold-shape", "prefill", lambda a: {"threshold_per_row": a["threshold_per_row"][:, :2]}, _V,
              "threshold_per_row: expected shape [4, 3] [Hq, Q] or [B, Hq, Q], got [4, 2]"),
    ErrorCase("prefill-vmc-without-sdc", "prefill", _set(vmc=True, sdc="none"), _V, f"vmc {_NO_VMC}"),
    ErrorCase("prefill-mass-shape", "prefill",
              lambda a: {"sdc": "offline", "discarded_mass": a["threshold_per_row"]}, _V,
              "discarded_mass: expected shape [2, 4, 3] [B, Hq, Q], got [4, 3]"),
    ErrorCase("prefill-length-too-long", "prefill", _set(actual_seq_lengths=[9, 3]), _V,
              "actual_seq_lengths[0]: expected 0 to 8 (the cache's capacity), got 9", True),
    ErrorCase("prefill-grad", "prefill", lambda a: {"key": a["key"].clone().requires_grad_()}, _V, _GRAD.format("key")),
)  # fmt: skip
