"""Prefill rows are decode steps; padding, causality and chunks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import probability, threshold_in_gap, tolerance
from toptheta_npu import incremental_attention_with_stats, prefill_attention
from toptheta_npu.fallback import prefill_attention_with_stats

INF = float("inf")
_SHAPE = {"batch": 2, "heads": 4, "kv_heads": 2, "n": 24, "dim": 16}
_MODES = [
    pytest.param({"sdc": "none"}, id="none"),
    pytest.param({"sdc": "exact"}, id="exact"),
    pytest.param({"sdc": "exact", "vmc": True}, id="exact-vmc"),
    pytest.param({"sdc": "exp_threshold"}, id="exp_threshold"),
    pytest.param({"sdc": "exp_threshold", "sdc_gamma": 0.3, "vmc": True}, id="exp_threshold-vmc"),
    pytest.param({"sdc": "offline"}, id="offline"),
    pytest.param({"sdc": "offline", "vmc": True}, id="offline-vmc"),
    pytest.param({"placement": "post_softmax"}, id="post"),
    pytest.param({"placement": "post_softmax", "vmc": True}, id="post-vmc"),
]


def prompt(seed: int = 0, dtype: torch.dtype = torch.float32, n: int = 24, post: bool = False) -> dict[str, Tensor]:
    """query, key, value and a threshold [B, Hq, Q] that lies in a gap of its row's scores; some keep nothing."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads, kv_heads, dim = (_SHAPE[name] for name in ("batch", "heads", "kv_heads", "dim"))
    query = torch.randn(batch, heads, n, dim, generator=generator).to(dtype)
    key, value = (torch.randn(batch, kv_heads, n, dim, generator=generator).to(dtype) for _ in range(2))
    scores = query.double() @ key.double().repeat_interleave(2, dim=1).transpose(2, 3) / dim**0.5
    threshold = torch.empty(batch, heads, n)
    for index in torch.cartesian_prod(torch.arange(batch), torch.arange(heads), torch.arange(n)).tolist():
        kind = ("quantile", "quantile", "nothing", "dense")[sum(index) % 4]
        row = scores[tuple(index)][: index[2] + 1].sort(descending=True).values
        theta = threshold_in_gap(row, kind, 0.3)
        threshold[tuple(index)] = probability(torch.tensor(theta), row.logsumexp(0)) if post else theta
    return {"query": query, "key": key, "value": value, "threshold_per_row": threshold}


def with_mass(rows: dict[str, Tensor], options: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = rows | options
    if options.get("sdc") == "offline":
        mass = torch.rand(rows["threshold_per_row"].shape, generator=torch.Generator().manual_seed(9))
        given["discarded_mass"] = mass
    return given


def decode_row(given: dict[str, Any], sequence: int, row: int, first: int = 0) -> tuple[Tensor, ...]:
    """The decode step of row ``row`` whose visible keys start at ``first``: [1, Hq, 1, D]."""
    pick = slice(sequence, sequence + 1)
    visible = {name: given[name][pick, :, first : row + 1] for name in ("key", "value")}
    options = {name: given[name] for name in ("sdc", "sdc_gamma", "placement") if name in given}
    if given.get("vmc"):
        options["value_mean"] = visible["value"].float().mean(2)
    if "discarded_mass" in given:
        options["discarded_mass"] = given["discarded_mass"][pick, :, row].contiguous()
    threshold = given["threshold_per_row"][pick, :, row].contiguous()
    return incremental_attention_with_stats(
        given["query"][pick, :, row : row + 1], **visible, threshold=threshold, **options
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("options", _MODES)
def test_rows_equal_decode_steps(options: dict[str, Any], dtype: torch.dtype) -> None:
    given = with_mass(prompt(dtype=dtype, post="placement" in options), options)
    out, stats = prefill_attention_with_stats(**given)
    torch.testing.assert_close(prefill_attention(**given), out, **tolerance(dtype))
    assert out.dtype == dtype
    for sequence in range(2):
        for row in (0, 1, 2, 5, 11, 16, 23):
            expected, _, kept, value_rows = decode_row(given, sequence, row)
            torch.testing.assert_close(out[sequence, :, row : row + 1], expected[0], **tolerance(dtype))
            assert torch.equal(stats.kept[sequence, :, row], kept[0])
            assert torch.equal(stats.value_rows[sequence, :, row], value_rows[0])


@pytest.mark.parametrize("options", _MODES)
@pytest.mark.parametrize("cuts", [(0, 1, 24), (0, 10, 11, 24), (0, 23, 24)], ids=["1", "10-11", "23"])
def test_chunks_equal_one_shot(options: dict[str, Any], cuts: tuple[int, ...]) -> None:
    given = with_mass(prompt(post="placement" in options), options)
    whole, stats = prefill_attention_with_stats(**given)
    for first, last in pairwise(cuts):
        chunk = dict(given)
        for name in ("query", "threshold_per_row", "discarded_mass"):
            if name in given:
                chunk[name] = given[name][:, :, first:last]
        for name in ("key", "value"):
            chunk[name] = given[name][:, :, :last]
        out, part = prefill_attention_with_stats(**chunk)
        torch.testing.assert_close(out, whole[:, :, first:last], **tolerance(torch.float32))
        assert torch.equal(part.kept, stats.kept[:, :, first:last])


@pytest.mark.parametrize("wrong", [torch.nan, INF, -INF])
def test_a_v_row_that_is_not_finite_spoils_those_that_keep_it_alone(wrong: float) -> None:
    given = prompt()
    given["value"][0, 0, 5, 3] = wrong
    out, spoilt = (
        prefill_attention(**given | {"threshold_per_row": torch.full((2, 4, 24), -INF)}),
        torch.zeros(2, 4, 24),
    )
    spoilt[0, :2, 5:] = 1
    assert torch.equal(out.isnan().all(-1), spoilt.bool())
    assert torch.equal(out.isfinite().all(-1), ~spoilt.bool())


def test_many_rows_equal_decode_steps() -> None:
    """More rows than are scored at a time."""
    given = prompt(n=600)
    out = prefill_attention(**given)
    for row in (0, 255, 256, 257, 511, 512, 599):
        torch.testing.assert_close(
            out[0, :, row : row + 1], decode_row(given, 0, row)[0][0], **tolerance(torch.float32)
        )


@pytest.mark.parametrize("options", _MODES)
@pytest.mark.parametrize(
    ("starts", "lengths"),
    [
        ((0, 0), (24, 13)),
        ((0, 11), (24, 13)),
        ((5, 9), (10, 1)),
        ((0, 0), (0, 24)),
        ((24, 0), (0, 1)),
        ((3, 0), (21, 24)),
    ],
    ids=["right", "left", "both", "empty", "empty-at-the-end", "left-full"],
)
def test_padded_batch_equals_single_runs(
    options: dict[str, Any], starts: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    post = "placement" in options
    given = with_mass(prompt(post=post), options)
    valid = torch.arange(24) >= torch.tensor(starts)[:, None]
    valid &= torch.arange(24) < (torch.tensor(starts) + torch.tensor(lengths))[:, None]
    for name in ("query", "key", "value"):
        given[name] = given[name].masked_fill(~valid[:, None, :, None], torch.nan)
    ranges = {"actual_seq_lengths": torch.tensor(lengths, dtype=torch.int32), "key_start": torch.tensor(starts)}
    out = prefill_attention(**given, **ranges)
    padding = out.transpose(1, 2)[~valid]
    assert torch.equal(padding, torch.zeros_like(padding))
    for sequence, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        for row in range(start, start + length, 5):
            expected = decode_row(given, sequence, row, start)[0]
            torch.testing.assert_close(out[sequence, :, row : row + 1], expected[0], **tolerance(torch.float32))


def test_dense_threshold_equals_torch_sdpa() -> None:
    given = prompt() | {"threshold_per_row": torch.full((4, 24), -INF)}
    query, key, value = (given[name] for name in ("query", "key", "value"))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(prefill_attention(**given), expected, **tolerance(torch.float32))


# Baselines


@pytest.mark.parametrize(("heads", "head_dim"), [(16, 32), (12, 32), (8, 512)], ids=str)
def test_prefill_counts_value_rows_by_head_block(heads: int, head_dim: int) -> None:
    torch.manual_seed(0)
    query, threshold = torch.randn(1, heads, 60, head_dim), torch.full((heads, 60), 0.3)
    key, value = torch.randn(1, 1, 60, head_dim), torch.randn(1, 1, 60, head_dim)
    _, stats = prefill_attention_with_stats(query, key, value, threshold)
    _, _, kept, value_rows = incremental_attention_with_stats(query[:, :, -1:], key, value, threshold[:, -1])
    assert torch.equal(stats.kept[:, :, -1], kept)
    assert torch.equal(stats.value_rows[:, :, -1], value_rows)
    assert value_rows.item() > 60  # more than one block, so rows are counted more than once


def test_prefill_autocast_changes_nothing() -> None:
    torch.manual_seed(0)
    query, threshold = torch.randn(1, 4, 70, 32), torch.full((4, 70), 0.5)
    key, value = torch.randn(1, 2, 70, 32), torch.randn(1, 2, 70, 32)
    plain = prefill_attention(query, key, value, threshold, vmc=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = prefill_attention(query, key, value, threshold, vmc=True)
    assert torch.equal(plain, cast)
