"""What the rules of single methods keep, and those that change what another rule keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from toptheta_npu.evaluation.methods.dense import select_all
from toptheta_npu.evaluation.methods.last_k import select_last_k
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.evaluation.methods.top_theta import Keep, capped, select_above
from toptheta_npu.fallback.prefill import (
    Prompt,
    RowChunk,
    Selector,
    prefill_attention_with_stats,
    row_chunks,
    select_and_attend,
)

_PADDING = {"actual_seq_lengths": torch.tensor([24, 9]), "key_start": torch.tensor([0, 5])}


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, heads, 24, 16, generator=generator) for heads in (4, 2, 2))


def chunk_of(query: Tensor, key: Tensor) -> RowChunk:
    (chunk,) = row_chunks(Prompt(query, key, key, **_PADDING))
    return chunk


def rows_of(mask: Tensor, chunk: RowChunk) -> list[tuple[int, int, list[int]]]:
    """First key, number of keys and the positions that ``mask`` keeps, of every row and head that is no padding."""
    rows = []
    for sequence, head, row in torch.cartesian_prod(*(torch.arange(size) for size in mask.shape[:3])).tolist():
        n, first = int(chunk.n[sequence, 0, row]), int(chunk.first[sequence, 0, 0])
        if n:
            rows.append((first, n, mask[sequence, head, row].nonzero().flatten().tolist()))
    return rows


@pytest.mark.parametrize("k", [1, 2, 5, 24])
@pytest.mark.parametrize("keep", ["recent", "first_and_last"])
def test_a_cap_keeps_the_k_elements_that_it_names(k: int, keep: Keep) -> None:
    def rule(chunk: RowChunk) -> Tensor:
        return chunk.scores > 0.2

    query, key, _ = inputs()
    chunk = chunk_of(query, key)
    passed, kept = rule(chunk), capped(rule, k, keep)(chunk)
    for (_, _, before), (_, _, after) in zip(rows_of(passed, chunk), rows_of(kept, chunk), strict=True):
        first = 0 if keep == "recent" else -(-k // 2)
        expected = before if len(before) <= k else before[:first] + before[len(before) - (k - first) :]
        assert after == expected


@pytest.mark.parametrize("k", [1, 3, 9, 23])
def test_top_k_keeps_k_of_equal_scores_and_nan_first(k: int) -> None:
    query, key, _ = inputs()
    chunk = chunk_of(query, key)
    rows = chunk.scores.shape[:3]
    lost = torch.rand(chunk.scores.shape, generator=torch.Generator().manual_seed(k)) < 0.2
    short = lost & (chunk.n[..., None] < k)
    broken = (chunk.scores.masked_fill(where, torch.nan) for where in (lost, short))
    for scores in (chunk.scores, chunk.scores.round(), *broken):
        scores = scores.masked_fill(~chunk.visible, -torch.inf)
        kept = select_top_k(k)(chunk._replace(scores=scores)) & chunk.visible
        assert torch.equal(kept.sum(-1), chunk.n.clamp(max=k).expand(rows))
        wanted = scores.topk(k).values
        got = scores.masked_fill(~kept, -torch.inf).topk(k).values
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("options", [{}, _PADDING], ids=["full", "padded"])
def test_thresholds_as_a_rule_are_those_of_a_prefill(placement: str, options: dict[str, Tensor]) -> None:
    query, key, value = inputs()
    table = torch.rand(25, 4, generator=torch.Generator().manual_seed(1))
    table[:6] = -torch.inf
    if placement == "post_softmax":
        table /= 4
    rule = select_above(lambda lengths: table[lengths], placement)
    starts = options.get("key_start", torch.zeros(2, dtype=torch.long))
    n = (torch.arange(1, 25) - starts[:, None]).clamp_min(0)
    theta = table[n].transpose(1, 2)
    expected, stats = prefill_attention_with_stats(query, key, value, theta, placement=placement, vmc=True, **options)
    out, found = select_and_attend(Prompt(query, key, value, **options), rule, vmc=True)
    assert torch.equal(out, expected)
    assert torch.equal(found.kept, stats.kept)
    assert (stats.kept[0, :, 20] < 21).all()


@pytest.mark.parametrize(("sdc", "vmc"), [("none", False), ("exact", False), ("exact", True)])
@pytest.mark.parametrize("gap", [3.0, 200.0])
def test_a_row_may_lose_its_largest_element(sdc: str, vmc: bool, gap: float) -> None:
    """Scores gap, 0, 1 and 2, of which the cap keeps the last two, in float64 by hand."""
    key = torch.tensor([gap, 0.0, 1.0, 2.0]).view(1, 1, 4, 1)
    value, query = torch.tensor([5.0, 7.0, 1.0, 3.0]).view(1, 1, 4, 1), torch.ones(1, 1, 1, 1)
    rule = capped(select_all(), 2, "recent")
    out, stats = select_and_attend(Prompt(query, key, value, scale_value=1.0), rule, sdc=sdc, vmc=vmc)
    weights = key.flatten().double().exp()
    kept = weights[2:].sum()
    total = weights.sum() if sdc == "exact" else kept
    expected = (weights[2:] @ value.flatten()[2:].double()) / total + (1 - kept / total) * 4.0 * vmc
    assert stats.kept.item() == 2
    assert out.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-30)


def test_rows_in_which_nothing_passes_are_marked() -> None:
    query, key, value = inputs()
    (chunk,) = row_chunks(Prompt(query, key, key, **_PADDING))
    _, stats = select_and_attend(Prompt(query, key, value, **_PADDING), lambda chunk: chunk.scores > 1.0)
    expected = (chunk.scores.amax(-1) <= 1.0) & (chunk.n > 0)
    assert torch.equal(stats.empty, expected)
    assert expected.any()
    assert (stats.kept[expected] == 1).all()


#: visible keys of every row without padding and with it, [B, Q]
_VISIBLE = torch.arange(1, 25).expand(2, 24)
_VISIBLE_PADDED = torch.stack([torch.arange(1, 25), (torch.arange(24) - 4).clamp_min(0) * (torch.arange(24) < 14)])


def attend(select: Selector, *, sdc: str = "exact", **padding: Tensor) -> tuple[Tensor, Any]:
    return select_and_attend(Prompt(*inputs(), **padding), select, sdc=sdc)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("rule", [select_top_k, select_last_k])
@pytest.mark.parametrize("k", [1, 5, 23, 24, 100])
def test_methods_of_a_number_keep_exactly_that(rule: Callable[[int], Selector], k: int, padded: bool) -> None:
    out, stats = attend(rule(k), **(_PADDING if padded else {}))
    visible = _VISIBLE_PADDED if padded else _VISIBLE
    assert torch.equal(stats.kept, visible.clamp_max(k)[:, None].expand(2, 4, 24).int())
    assert out.isfinite().all()


def test_last_k_keeps_the_most_recent_keys() -> None:
    query, key, value = inputs()
    out, _ = attend(select_last_k(4), sdc="none")
    recent = (each[1:, :1, 7:11] for each in (key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(query[1:, :1, 10:11], *recent)
    torch.testing.assert_close(out[1:, :1, 10:11], expected)
