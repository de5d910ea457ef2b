"""From the arguments of the public functions to a call of the operator on the host model."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from emulator.cann import Platform
from tests.cases import Case
from tests.helpers import Inputs, assert_equals_oracle, by_sequence
from tests.op_kernel.test_ub_layout import token_blocks_of
from toptheta_host_model import OperatorRun, run_operator
from toptheta_npu.fallback.antiquant import PER_CHANNEL, per_channel

#: The tiling key under which cube cores multiply the K rows.
CUBE_KEY = 3
#: The one of several query tokens.
TOKENS_KEY = 4
_MODES = ("key_antiquant_mode", "value_antiquant_mode")
_INTEGERS = ("actual_seq_lengths", "key_start", "actual_query_lengths")
_STATISTICS = ("attention_out", "lse", "kept", "value_rows")
_PART = ("part_out", "part_maximum", "part_kept_mass", "part_discarded_mass", "kept")


def for_kernel(case: Case) -> Case | None:
    """The case as the kernel can run it: float32 becomes float16; None where it is outside of its limits."""
    scales = [case.scales_of(cache) for cache in ("key", "value")]
    by_token = "token" in scales and case.scales_as != "float32"
    if case.placement == "sampled_softmax" and (case.query_tokens > 1 or scales[0] == "token"):
        return None
    if case.head_dim % (32 if case.int8 else 16) or (case.paged and case.block_size % 16) or by_token:
        return None
    return replace(case, dtype="float16") if case.dtype == "float32" else case


def uses_cube(case: Case) -> bool:
    """Whether tiling gives the K rows of the case to the cube cores."""
    return case.heads // case.kv_heads >= (2 if case.dtype == "bfloat16" else 3)


def call(
    arguments: dict[str, Any], *, cores: int = 48, cube: bool = True, path: str = "auto", with_stats: bool = True,
    partial: bool = False, row_lse: Tensor | None = None, l2_bytes: int = Platform.l2_bytes, **launch: Any,
) -> OperatorRun:  # fmt: skip
    """Run the operator as the adapter will: with statistics, or as a part of a longer row.

    ``cube``: whether the SoC has a cube core for every two of its vector cores, so that tiling may use them.
    """
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    for name in _INTEGERS:
        if isinstance(arguments.get(name), list):
            tensors[name] = torch.tensor(arguments[name], dtype=torch.int32)
    _same_integers(tensors)
    if row_lse is not None:
        tensors["row_lse"] = row_lse
    layout = arguments["input_layout"]
    query, key = tensors["query"], tensors["key"]
    heads = arguments.get("num_heads") or query.shape[1 if layout == "BNSD" else 2]
    kv_heads = arguments.get("num_key_value_heads") or key.shape[_kv_axis(arguments)]
    tokens = query.shape[2 if layout == "BNSD" else 1]
    head_dim = query.numel() // query.shape[0] // heads // tokens
    modes = {name: arguments.get(name, PER_CHANNEL) for name in _MODES}
    for name, mode in modes.items():
        scale = name.replace("mode", "scale")
        if scale in tensors and mode == PER_CHANNEL:  # as the adapter makes them for the kernel
            tensors[scale] = per_channel(tensors[scale], kv_heads, head_dim).float().contiguous()
    attributes = {
        "num_heads": heads, "num_key_value_heads": kv_heads, **modes,
        "scale_value": arguments.get("scale_value", head_dim**-0.5),
        "input_layout": layout, "placement": arguments["placement"], "sdc": arguments.get("sdc", "exact"),
        "path": path, "block_size": arguments.get("block_size", 0), "with_stats": with_stats and not partial,
        "partial": partial,
    }  # fmt: skip
    platform = Platform(vector_cores=cores, cube_cores=cores // 2 if cube else 0, l2_bytes=l2_bytes)
    return run_operator(tensors, attributes, platform=platform, **launch)


def statistics(result: OperatorRun) -> tuple[Tensor, ...]:
    """What `incremental_attention_with_stats` returns."""
    return tuple(result.outputs[name] for name in _STATISTICS)


def has_tokens(case: Case) -> bool:
    """Whether the case is for the kernel of several query tokens."""
    return case.query_tokens > 1 or bool(case.query_lengths)


def assert_kernel_equals_oracle(inputs: Inputs, result: tuple[Tensor, ...], largest_score: float = 0.0) -> None:
    """The same as `assert_equals_oracle`, for the kernel: with several tokens, each block of the query rows of a KV
    head reads the V rows that any of its rows keeps."""
    case, read = inputs.case, None
    if has_tokens(case):
        keep = by_sequence(case, inputs.expected.keep).transpose(1, 2).flatten(1, 2).unflatten(1, (case.kv_heads, -1))
        rows = keep.shape[2]
        sizes = (1 if case.int8 else 2, 1 if case.int8 == "both" else 2)
        blocks = token_blocks_of(rows, case.head_dim, case.dtype == "bfloat16", *sizes, case.query_tokens)
        ends = [block * rows // blocks for block in range(blocks + 1)]
        read = torch.stack([keep[:, :, first:end].any(2).sum(-1) for first, end in pairwise(ends)]).sum(0)
    assert_equals_oracle(inputs, result, largest_score, read)


def part(result: OperatorRun) -> tuple[Tensor, ...]:
    """What `incremental_attention_partial` returns."""
    return tuple(result.outputs[name] for name in _PART)


def statistics_of(inputs: Inputs, **options: Any) -> tuple[Tensor, ...]:
    """The same for the inputs of a case, with no finding of the host model."""
    result = call(inputs.arguments, **options)
    result.run.require_clean()
    return statistics(result)


def _kv_axis(arguments: dict[str, Any]) -> int:
    return 1 if arguments["input_layout"] == "BNSD" or arguments.get("block_table") is not None else 2


def _same_integers(tensors: dict[str, Tensor]) -> None:
    """Lengths, starts and numbers of tokens share an integer type, as the operator's definition asks."""
    given = [name for name in _INTEGERS if name in tensors]
    for name in given[1:]:
        tensors[name] = tensors[name].to(tensors[given[0]].dtype)
