"""Rules that change what another rule keeps: a cap at k, and keys that every row keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from toptheta_npu.fallback import baselines
from toptheta_npu.fallback.prefill import RowChunk, prefill_attention_with_stats, row_chunks, select_and_attend

_PADDING = {"actual_seq_lengths": torch.tensor([24, 9]), "key_start": torch.tensor([0, 5])}


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, heads, 24, 16, generator=generator) for heads in (4, 2, 2))


def chunk_of(query: Tensor, key: Tensor) -> RowChunk:
    (chunk,) = row_chunks(query, key, **_PADDING)
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
def test_a_cap_keeps_the_k_elements_that_it_names(k: int, keep: baselines.Keep) -> None:
    def rule(chunk: RowChunk) -> Tensor:
        return chunk.scores > 0.2

    query, key, _ = inputs()
    chunk = chunk_of(query, key)
    passed, kept = rule(chunk), baselines.capped(rule, k, keep)(chunk)
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
        kept = baselines.top_k(k)(chunk._replace(scores=scores)) & chunk.visible
        assert torch.equal(kept.sum(-1), chunk.n.clamp(max=k).expand(rows))
        wanted = scores.topk(k).values
        got = scores.masked_fill(~kept, -torch.inf).topk(k).values
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_an_unknown_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="recent, first_and_last"):
        baselines.capped(baselines.dense(), 4, "oldest")  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 0), (0, 4), (2, 3), (30, 30)])
def test_first_and_last_keys_are_kept_besides_what_the_rule_keeps(first: int, last: int) -> None:
    query, key, value = inputs()
    chunk, rule = chunk_of(query, key), baselines.top_k(4)
    always = baselines.with_first_and_last(rule, first, last)
    visible = chunk.scores > -torch.inf
    pairs = zip(rows_of(rule(chunk) & visible, chunk), rows_of(always(chunk) & visible, chunk), strict=True)
    for (start, n, before), (_, _, after) in pairs:
        ends = {*range(start, min(start + first, start + n)), *range(max(start, start + n - last), start + n)}
        assert after == sorted({*before, *ends})
    assert select_and_attend(query, key, value, always, **_PADDING)[0].isfinite().all()


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("options", [{}, _PADDING], ids=["full", "padded"])
def test_thresholds_as_a_rule_are_those_of_a_prefill(placement: str, options: dict[str, Tensor]) -> None:
    query, key, value = inputs()
    table = torch.rand(25, 4, generator=torch.Generator().manual_seed(1))
    table[:6] = -torch.inf
    if placement == "post_softmax":
        table /= 4
    rule = baselines.above_threshold(lambda lengths: table[lengths], placement)
    starts = options.get("key_start", torch.zeros(2, dtype=torch.long))
    n = (torch.arange(1, 25) - starts[:, None]).clamp_min(0)
    theta = table[n].transpose(1, 2)
    expected, stats = prefill_attention_with_stats(query, key, value, theta, placement=placement, vmc=True, **options)
    out, found = select_and_attend(query, key, value, rule, vmc=True, **options)
    assert torch.equal(out, expected)
    assert torch.equal(found.kept, stats.kept)
    assert (stats.kept[0, :, 20] < 21).all()


@pytest.mark.parametrize(("sdc", "vmc"), [("none", False), ("exact", False), ("exact", True)])
@pytest.mark.parametrize("gap", [3.0, 200.0])
def test_a_row_may_lose_its_largest_element(sdc: str, vmc: bool, gap: float) -> None:
    """Scores gap, 0, 1 and 2, of which the cap keeps the last two, in float64 by hand."""
    key = torch.tensor([gap, 0.0, 1.0, 2.0]).view(1, 1, 4, 1)
    value, query = torch.tensor([5.0, 7.0, 1.0, 3.0]).view(1, 1, 4, 1), torch.ones(1, 1, 1, 1)
    rule = baselines.capped(baselines.dense(), 2, "recent")
    out, stats = select_and_attend(query, key, value, rule, scale_value=1.0, sdc=sdc, vmc=vmc)
    weights = key.flatten().double().exp()
    kept = weights[2:].sum()
    total = weights.sum() if sdc == "exact" else kept
    expected = (weights[2:] @ value.flatten()[2:].double()) / total + (1 - kept / total) * 4.0 * vmc
    assert stats.kept.item() == 2
    assert out.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-30)


def test_rows_in_which_nothing_passes_are_marked() -> None:
    query, key, value = inputs()
    (chunk,) = row_chunks(query, key, **_PADDING)
    _, stats = select_and_attend(query, key, value, lambda chunk: chunk.scores > 1.0, **_PADDING)
    expected = (chunk.scores.amax(-1) <= 1.0) & (chunk.n > 0)
    assert torch.equal(stats.empty, expected)
    assert expected.any()
    assert (stats.kept[expected] == 1).all()
